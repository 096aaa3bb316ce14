"""The wrapper reads dp-accounting's two conventions as one, and the library agrees with `cost`."""

import pytest
from support.dp_events import GaussianRelease, Relation, UnsupportedSamplerError

from fedsim.privacy import cost, gaussian
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Release

N, CLIP, DELTA = 200, 3.0, 1e-5


def release(z, batch=FULL, relation=Relation.REPLACE_ONE):
    terms = 2 if relation is Relation.REPLACE_ONE else 1
    return GaussianRelease(z * terms * CLIP / batch.size(N), CLIP, N, batch, relation)


def test_dp_accounting_reads_one_number_in_two_ways():
    # The trap itself: if the library mends it, this test says so and the wrapper must follow.
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    event, relation = dp.GaussianDpEvent(1.0), dp.NeighboringRelation.REPLACE_ONE
    rdp = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(DELTA)
    pld = PLDAccountant(relation).compose(event).get_epsilon(DELTA)
    assert rdp == pytest.approx(4.73, abs=0.01)
    assert pld == pytest.approx(10.00, abs=0.01)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (4.0, 9)])
def test_both_accountants_mean_the_same_sigma(relation, z, count):
    one = release(z, FULL, relation)
    exact = float(gaussian.epsilon(count**0.5 / z, DELTA))
    assert one.noise_multiplier == pytest.approx(z)
    assert one.pld_epsilon(count, DELTA) == pytest.approx(exact, rel=1e-3)
    assert exact <= one.rdp_epsilon(count, DELTA) <= 1.15 * exact


def test_sensitivity_is_two_clips_over_the_batch_under_replace_one():
    assert GaussianRelease(1.0, 3.0, 200, Subsample(0.1)).sensitivity == pytest.approx(2 * 3 / 20)
    assert GaussianRelease(1.0, 3.0, 200, Poisson(0.1)).sensitivity == pytest.approx(2 * 3 / 20)
    assert GaussianRelease(1.0, 3.0, 200, FULL, Relation.ADD_OR_REMOVE_ONE).sensitivity == pytest.approx(
        3 / 200
    )


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("batch", [FULL, Poisson(0.1), Poisson(0.5), Fresh(0.01)], ids=repr)
def test_cost_agrees_with_the_librarys_pld(batch, count):
    z = 1.5
    expected = release(z, batch).pld_epsilon(count, DELTA)
    assert cost.epsilon(((Release(batch, 1.0), count),), N, z, DELTA) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("batch", [FULL, Subsample(0.1), Subsample(0.5)], ids=repr)
def test_rdp_is_looser_than_cost(batch, count):
    z = 2.0
    tight = cost.epsilon(((Release(batch, 1.0), count),), N, z, DELTA)
    assert tight <= release(z, batch).rdp_epsilon(count, DELTA) <= 6 * tight


@pytest.mark.parametrize("batch", [Subsample(1.0), Poisson(1.0)])
def test_rate_one_is_written_as_a_plain_gaussian(batch):
    assert release(2.0, batch).rdp_event() == release(2.0).rdp_event()
    assert release(2.0, batch).pld_event() == release(2.0).pld_event()


def test_what_the_library_cannot_price_is_refused():
    with pytest.raises(UnsupportedSamplerError, match="without replacement"):
        release(1.0, Subsample(0.1)).pld_epsilon(1, DELTA)
    for price in (
        release(1.0, WithReplacement(0.1)).pld_epsilon,
        release(1.0, WithReplacement(0.1)).rdp_epsilon,
    ):
        with pytest.raises(UnsupportedSamplerError, match="with_replacement"):
            price(1, DELTA)
    with pytest.raises(UnsupportedSamplerError, match="poisson under replace_one"):
        release(1.0, Poisson(0.1)).rdp_epsilon(1, DELTA)
    with pytest.raises(UnsupportedSamplerError, match="subsample under add_or_remove_one"):
        release(1.0, Subsample(0.1), Relation.ADD_OR_REMOVE_ONE).rdp_epsilon(1, DELTA)
