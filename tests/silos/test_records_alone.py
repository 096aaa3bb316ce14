"""What one record does to the answers of its own silo and of others, for any module or problem.

Every hostile part is refused before records are read, or stays within the sensitivity that is paid for.
"""

import inspect
from functools import cache

import numpy as np
import pytest
import torch
from support import hostile_modules
from support.helpers import Silo, asking, open_gate, scripted
from support.refusals import refused
from torch import nn

from fedsim.common.errors import InputError
from fedsim.problems.capture import each, largest_tile
from fedsim.problems.glm import LogisticRegression
from fedsim.problems.kinds import Problem, check
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_layers import Layers
from fedsim.problems.network_models import Imported
from fedsim.protocol.batch import FULL
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.simulation.selection import Scorer
from silos.vault.entropy import SeededEntropy
from silos.vault.records import Records

N, CLIP = 40, 0.02
ROUNDING = 1e-6
REFUSED = {"Buffered", "Written", "leftover", "patched", "records_as_channels"}
REFUSED |= {"written_past", "segmented", "resized", "drawing", "dividing", "Subclassed", "registered"}
REFUSED |= {"HookedSlope"} | {
    f"by_{name}"
    for name in (
        *("Flipped", "SortedNumber", "CumulatedNumber", "LargestNumber", "JoinedWithNothing", "Scattered"),
        *("Strided", "Median", "Product", "Normalised", "Nonzero"),
    )
}

REFUSED_LOSSES = {"Raising", "Overwriting", "FlippedLoss", "SortedLoss", "LargestLoss"}
REFUSED_LOSSES |= {"CumulatedLoss", "SqueezedLoss"}


@cache
def network(attribute: str) -> NeuralNetwork:
    return NeuralNetwork(6, 3, model=Imported(f"support.hostile_modules:{attribute}"))


def silos(problem: Problem) -> list[Silo]:
    """Two silos of one size, so that they share every tensor, with positive features and classes 0 to 2."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(2):
        x, y = rng.uniform(0.1, 1, (N, problem.num_features)), np.arange(N) % 3
        made.append((x, y.astype(float) if problem.num_outputs == 3 else (y % 2).astype(float)))
    return made


RECORDS = [
    *(np.full(6, value) for value in (-1.0, 1.0, 0.0, -50.0, 1e6, np.nan)),
    np.array([1, -1, 0.5, -0.5, 0, 1e-9]),
]
REPLACEMENTS = [
    *((record, target) for record in RECORDS for target in (0.0, 2.0)),
    *((RECORDS[1], target) for target in (7.0, -1.0, 1e5, np.nan)),
]


PLAN = Plan(3 * (((Ask(FULL, (QueryShape("gradient", 1, 1.0),))),),))


def answers(data: list[Silo], problem: Problem, *points: torch.Tensor) -> torch.Tensor:
    """(points, silos, d)"""
    gate = open_gate(data, problem, scripted(asking(clip=CLIP)), epsilon=np.inf, plan=PLAN)
    return torch.stack([gate.answer(r, {"w": point})["g"] for r, point in enumerate(points)])


def largest_moves(problem: Problem) -> tuple[float, float]:
    """The own and other silos' answers, over 2 C / n, over all replacements at several points."""
    start = problem.start(1).double()
    generator = torch.Generator().manual_seed(0)
    wild = 30 * torch.randn(problem.dimension, dtype=torch.float64, generator=generator)
    points = (start, wild, torch.zeros_like(start))
    before = answers(len(REPLACEMENTS) * silos(problem), problem, *points)
    changed = [silos(problem) for _ in REPLACEMENTS]
    for (own, _), (record, target) in zip(changed, REPLACEMENTS, strict=True):
        own[0][3], own[1][3] = record, target
    after = answers([silo for pair in changed for silo in pair], problem, *points)
    moved = (after - before).norm(dim=2) / (2 * CLIP / N)
    return float(moved[:, ::2].max()), float(moved[:, 1::2].max())


@pytest.mark.parametrize("attribute", hostile_modules.NETWORKS)
def test_no_module_lets_a_record_reach_another_ones_term(attribute):
    problem = network(attribute)
    if attribute in REFUSED:
        with refused("scenario.problem.model"):
            check(problem, torch.float64)
        return
    own, other = largest_moves(problem)
    assert 0.1 < own <= 1 + ROUNDING
    assert other == 0


@pytest.mark.parametrize("kind", hostile_modules.PROBLEMS, ids=lambda kind: kind.__name__)
def test_no_linear_problem_lets_a_record_reach_another_ones_term(kind):
    problem = kind(6)
    if kind.__name__ in REFUSED_LOSSES:
        with refused("scenario.problem.name"):
            check(problem, torch.float64)
        return
    own, other = largest_moves(problem)
    assert own <= 1 + ROUNDING
    assert other == 0


def test_stored_records_stay_as_they_are():
    problem = hostile_modules.Handing(6)
    gate = open_gate(silos(problem), problem, scripted(asking(clip=CLIP)), epsilon=np.inf)
    point = torch.ones(6, dtype=torch.float64)
    first = gate.answer(0, {"w": point})["g"].clone()
    assert torch.equal(gate.answer(1, {"w": point})["g"], first)


@pytest.mark.parametrize("kind", [hostile_modules.Indexing, hostile_modules.Whole])
def test_a_record_whose_coefficient_cannot_be_computed_counts_as_zero(kind):
    problem = kind(6)
    data = silos(problem)
    point = torch.ones(6, dtype=torch.float64)
    data[0][1][3] = 4.0  # the table ends at 3
    missing = answers(data, problem, point)[0, 0]
    data[0][0][3] = 0.0
    data[0][1][3] = 0.0
    torch.testing.assert_close(missing, answers(data, problem, point)[0, 0])


@pytest.mark.parametrize("attribute", sorted(set(hostile_modules.NETWORKS) - REFUSED))
def test_a_score_moves_by_one_record_at_most(attribute):
    problem = network(attribute)
    point = 30 * problem.start(0).double()

    def mistakes(changed):
        (x, y), _ = silos(problem)
        if changed is not None:
            x[3] = changed
        scorer = Scorer(
            [(x, y)], problem, [0.0], SeededEntropy(0, 0, ["a"], ["run"]), Limits(), torch.float64
        )
        return N * float(scorer.answer(point)[0])

    before = mistakes(None)
    for record in RECORDS:
        assert abs(mistakes(record) - before) <= 1 + 1e-9


def test_known_layers_with_something_of_their_own_are_not_taken_for_known_layers():
    for attribute in ("subclassed", "hooked", "hooked_around", "parametrised"):
        assert not isinstance(network(attribute).form(torch.float64), Layers), attribute


def test_layers_with_parameters_of_unusual_shapes_get_the_gradient_that_autograd_gives():
    problem = network("short_bias")
    assert not isinstance(problem.form(torch.float64), Layers)
    check(problem, torch.float64)


def test_a_module_that_gives_no_number_in_the_type_of_the_run_is_refused():
    check(network("Double"), torch.float64)
    with pytest.raises(InputError, match="float32"):
        check(network("Double"), torch.float32)


def test_hooks_on_all_modules_do_not_reach_the_known_layers():
    problem = NeuralNetwork(6, 3)
    point = problem.start(0).double()
    (before,) = answers(silos(problem), problem, point)
    hook = nn.modules.module.register_module_forward_pre_hook(hostile_modules.shifted)
    try:
        data = silos(problem)
        data[0][0][3] = -1.0
        (after,) = answers(data, problem, point)
    finally:
        hook.remove()
    assert torch.equal(before[1], after[1])
    assert float((after - before)[0].norm()) <= 2 * CLIP / N * (1 + ROUNDING)


def test_each_gives_nan_where_the_function_raises_and_the_same_bits_elsewhere():
    table = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)

    def look_up(row):
        return torch.exp(table[row.long()])

    rows = torch.tensor([0.0, 2.0, 9.0, 1.0, -7.0], dtype=torch.float64)
    found = each(look_up, (), torch.float64, rows, tile=4)
    assert found.isnan().tolist() == [False, False, True, False, True]
    good = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
    assert torch.equal(found[[0, 1, 3]], each(look_up, (), torch.float64, good, tile=4))
    assert each(look_up, (), torch.float64, rows[[2, 4]], tile=4).isnan().all()
    kept = torch.ones(3)
    assert each(lambda row: row, (), torch.float32, kept, tile=4).data_ptr() != kept.data_ptr()


def test_fewer_rows_than_a_vector_has_numbers_are_computed_one_by_one():
    """Made-up rows would not show it: what a program makes of them may be the same at every place."""
    sizes = {2**20: 16, 2**20 + 1: 1, 2**15: 16, 2**14: 32, 1: 8192}
    assert {numbers: largest_tile(numbers, raises=False) for numbers in sizes} == sizes
    assert [largest_tile(numbers, raises=True) for numbers in (1, 2**15, 2**20 + 1)] == [32, 16, 1]


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
def test_an_exhausted_process_is_no_fault_of_a_record(error):
    def exhausted(row):
        raise error

    with pytest.raises(error):
        each(exhausted, (), torch.float64, torch.zeros(4), tile=4)


def test_a_raising_record_is_found_at_the_depth_at_which_the_others_are_computed():
    depths = []

    def look_up(row):
        depths.append(len(inspect.stack(0)))
        return torch.tensor([0.1])[row.long()]

    each(look_up, (), torch.float64, torch.tensor([0.0] * 7 + [9.0] + [0.0] * 8), tile=16)
    assert len(depths) > 5
    assert len(set(depths)) == 1


@pytest.mark.parametrize("length", [1e-31, 1e-39, 1e-44])
def test_a_record_too_short_for_an_inverse_norm_is_the_zero_vector(length):
    x = np.array([[length, 0.0], [1.0, 0.0]])
    block = Records([(x, np.ones(2))], LogisticRegression(2), torch.float32).full([0])[0]
    assert block.features[0, 0].tolist() == [0.0, 0.0]
    assert block.inverse_norm[0, :2].tolist() == [0.0, 1.0]
