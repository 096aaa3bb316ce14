"""`cost` against dp-accounting, which reads one noise multiplier in two ways."""

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from support.dp_events import REPLACE_ONE, pld_epsilon, rdp_epsilon

from fedsim.privacy import cost, gaussian
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample
from fedsim.protocol.plan import Release

N, DELTA = 200, 1e-5


def test_dp_accounting_reads_one_number_in_two_ways():
    # The trap itself: if the library mends it, this test says so and the oracle must follow.
    event = dp.GaussianDpEvent(1.0)
    rdp = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(DELTA)
    pld = PLDAccountant(REPLACE_ONE).compose(event).get_epsilon(DELTA)
    assert rdp == pytest.approx(4.73, abs=0.01)
    assert pld == pytest.approx(10.00, abs=0.01)


@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (4.0, 9)])
def test_both_accountants_mean_the_same_sigma(z, count):
    exact = float(gaussian.epsilon(count**0.5 / z, DELTA))
    assert pld_epsilon(FULL, N, z, count, DELTA) == pytest.approx(exact, rel=1e-3)
    assert exact <= rdp_epsilon(FULL, N, z, count, DELTA) <= 1.15 * exact


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("batch", [FULL, Poisson(0.1), Poisson(0.5), Fresh(0.01)], ids=repr)
def test_cost_agrees_with_the_librarys_pld(batch, count):
    expected = pld_epsilon(batch, N, 1.5, count, DELTA)
    assert cost.epsilon(((Release(batch, 1.0), count),), N, 1.5, DELTA) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("batch", [FULL, Subsample(0.1), Subsample(0.5)], ids=repr)
def test_rdp_is_looser_than_cost(batch, count):
    tight = cost.epsilon(((Release(batch, 1.0), count),), N, 2.0, DELTA)
    assert tight <= rdp_epsilon(batch, N, 2.0, count, DELTA) <= 6 * tight
