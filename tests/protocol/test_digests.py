"""The digest names one set of arrays and no other."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import InputError
from fedsim.common.plugins import entry_points, extended
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.copies import digest
from fedsim.protocol.pool import MOST_RECORDS, Pool
from server.aggregate import coefficients

W = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
BASE = {"w": W, "v": torch.zeros(3, dtype=torch.float64)}


@pytest.mark.parametrize(
    "other",
    [
        {**BASE, "w": W + torch.tensor([[0.0, 0.0], [0.0, 1e-15]])},
        {**BASE, "w": W.float()},
        {**BASE, "w": W.reshape(4)},
        {**BASE, "w": W.reshape(1, 2, 2)},
        {**BASE, "w": W.reshape(4, 1)},
        {**BASE, "w": W.T},
        {**BASE, "w": W.view(torch.int64)},
        {**BASE, "w": W[:1]},
        {"w": W},
        {**BASE, "u": W},
        {"x": W, "v": BASE["v"]},
        {"w": BASE["v"], "v": W},
        {**BASE, "v": -BASE["v"]},
        {},
    ],
    ids=range(14),
)
def test_any_change_of_name_type_shape_or_value_changes_the_digest(other):
    assert digest(other) != digest(BASE)


def test_the_digest_is_of_the_arrays_and_not_of_their_layout():
    same = {"v": BASE["v"].clone(), "w": torch.stack([W[:, 0], W[:, 1]], 1)}
    strided = {**BASE, "w": W.T.contiguous().T}
    assert digest(BASE) == digest(same) == digest(strided)
    assert len(digest(BASE)) == 32
    assert digest({"w": W.clone().requires_grad_()}) == digest({"w": W})


names = st.text("wv1:(),float64.", min_size=0, max_size=6)
arrays = st.dictionaries(
    names, st.lists(st.sampled_from([0.0, 1.0, -2.5]), max_size=3).map(tuple), max_size=3
)


@settings(derandomize=True, max_examples=300)
@given(one=arrays, other=arrays)
def test_two_sets_of_arrays_share_a_digest_only_if_equal(one, other):
    def of(values):
        return digest(
            {name: torch.from_numpy(np.array(value, dtype=float)) for name, value in values.items()}
        )

    assert (of(one) == of(other)) == (one == other)


# A pool's units and weights: what silos contribute adds up to the server's weighted mean.

SIZES = (10, 40, 7, 25, 100)
BATCHES: list[Batch] = [FULL, Subsample(0.3), Fresh(0.2), Poisson(0.13), WithReplacement(0.5)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("weights", [(1.0,) * 5, (0.1, 2.0, 0.4, 1.0, 3.0), tuple(map(float, SIZES))])
@pytest.mark.parametrize("members", [(0, 1, 2, 3, 4), (1, 3), (2,)])
def test_contributions_decode_to_the_weighted_mean(batch, weights, members):
    """sum_i w_i K_i m_i u N / M is sum_i (N p_i / M) m_i, for any means."""
    pool = Pool(SIZES, weights, 1, 1.0)
    means = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[list(members)]
    wanted = coefficients(torch.tensor(weights, dtype=torch.float64), members, 5) @ means
    sums = [
        mean * batch.size(SIZES[i]) * pool.weight(i, batch) for i, mean in zip(members, means, strict=True)
    ]
    torch.testing.assert_close(
        torch.stack(sums).sum(dim=0) * pool.worth(batch, len(members)), wanted, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_weights_are_shares_of_the_heaviest(batch):
    pool = Pool(SIZES, (0.1, 2.0, 0.4, 1.0, 3.0), 3, 0.5)
    weights = [pool.weight(i, batch) for i in range(5)]
    assert max(weights) == 1
    assert min(weights) > 0
    assert pool.unit(batch) == max(
        w / sum(pool.weights) / batch.size(n) for w, n in zip(pool.weights, SIZES, strict=True)
    )


def test_the_heaviest_of_several_kinds_counts():
    pool = Pool((10, 100), (0.5, 0.5), 2, 1.0)
    few = WithReplacement(0.01)  # one record of either silo
    assert pool.weight(1, FULL) == pytest.approx(0.1)
    assert pool.heaviest(1, [FULL, few]) == pool.heaviest(1, [few]) == 1
    assert pool.heaviest(1, []) == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sizes": ()}, "sizes"),
        ({"sizes": (0, 5)}, "sizes"),
        ({"sizes": (1, MOST_RECORDS)}, "sizes"),
        ({"weights": (1.0,)}, "weights"),
        ({"weights": (1.0, 0.0)}, "weights"),
        ({"weights": (1.0, float("nan"))}, "weights"),
        ({"min_silos": 3}, "min_silos"),
        ({"min_silos": 0}, "min_silos"),
        ({"honest_fraction": 0.0}, "honest_fraction"),
        ({"honest_fraction": 1.1}, "honest_fraction"),
    ],
)
def test_other_values_are_refused(change, named):
    values = {"sizes": (5, 5), "weights": (1.0, 1.0), "min_silos": 2, "honest_fraction": 1.0} | change
    with pytest.raises(InputError, match=f"pool.{named}"):
        Pool(**values)


# Parts of other distributions: an installed one is found, and a bad one is named.

GROUP = "fedsim.test_parts"


def _distribution(folder: Path, name: str, lines: str, group: str = GROUP) -> None:
    """What an installer leaves on the path, without one."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_entry_points_are_loaded_under_their_names(folder):
    _distribution(folder, "theirs", "b = fractions:Fraction\na = decimal:Decimal")
    assert [(name, kind.__name__) for name, kind in entry_points(GROUP).items()] == [
        ("a", "Decimal"),
        ("b", "Fraction"),
    ]
    assert list(extended(GROUP, {"mine": int}, object)) == ["mine", "a", "b"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("mine = decimal:Decimal", ["built in", "another"]),
        ("a = decimal:getcontext", ["class derived from Number"]),
        ("a = fractions:re", ["class derived from Number"]),
    ],
)
def test_a_bad_entry_point_names_its_distribution(folder, lines, expected):
    from numbers import Number

    _distribution(folder, "theirs", lines)
    with pytest.raises(InputError) as caught:
        extended(GROUP, {"mine": int}, Number)
    for text in [f"{GROUP}:{lines.split()[0]}", "distribution theirs", *expected]:
        assert text in str(caught.value)


PLUGIN = """
from dataclasses import dataclass
from fedsim.problems.glm import LinearRegression

@dataclass(frozen=True)
class Doubled(LinearRegression):
    \"\"\"Twice the squared error.\"\"\"

    def coefficient(self, scores, target, inverse_norm):
        return 2 * (scores - target)
"""


@pytest.mark.parametrize(
    ("name", "code"), [pytest.param("doubled", 0, marks=pytest.mark.slow), ("hinge_loss", 2)]
)
def test_a_problem_of_another_distribution_can_be_named_and_a_clash_is_one_line(tmp_path, name, code):
    _distribution(tmp_path, "theirs", f"{name} = plugin_module:Doubled", "fedsim.problems")
    (tmp_path / "plugin_module.py").write_text(PLUGIN)
    run = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fedsim.cli.main import app; app(['list'])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert "doubled" in done.stdout
        assert "Twice the squared error." in done.stdout
    else:
        assert done.stderr.startswith("error: entry point fedsim.problems:hinge_loss")
        assert "distribution theirs" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
