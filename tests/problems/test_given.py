"""Problems as data: what a stranger may send is a program of one record, or refused."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import hostile_modules
from support.helpers import Silo
from support.refusals import refused
from torch import Tensor, nn

from fedsim.common.errors import InputError
from fedsim.problems.given import described, given
from fedsim.problems.kinds import Problem, accepts
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Mlp
from silos.vault.records import Records, clipped_sum

PROBLEMS: dict[str, Problem] = {
    "loss": hostile_modules.Indexing(6),
    "chain": NeuralNetwork(6, 3, model=Mlp((4,))),
    "tokens": NeuralNetwork(6, 3, model=Imported("support.network_modules:Tokens")),
    "one output": NeuralNetwork(6, 1, model=Imported("support.network_modules:Wide")),
}


def silo(problem: Problem) -> Silo:
    rng = np.random.default_rng(0)
    return rng.uniform(0, 7, (9, problem.num_features)), np.arange(9.0) % 3


def sums(problem: Problem, dtype: torch.dtype) -> Tensor:
    (block,) = Records([silo(problem)], problem, dtype).full([0])
    generator = torch.Generator().manual_seed(0)
    point = torch.randn(problem.dimension, dtype=dtype, generator=generator)
    return clipped_sum(problem, block, [point], 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_was_sent_computes_what_was_described(name: str, dtype: torch.dtype) -> None:
    problem = PROBLEMS[name]
    tree, arrays = described(problem, dtype)
    again = given(json.loads(json.dumps(tree)), arrays, dtype)
    assert again.dimension == problem.dimension
    torch.testing.assert_close(sums(again, dtype), sums(problem, dtype), rtol=1e-5, atol=1e-5)
    target = torch.tensor([0.0, 2.0, np.nan, 1e9], dtype=dtype)
    assert torch.equal(accepts(again, target), accepts(problem, target))
    if isinstance(again, NeuralNetwork):
        with pytest.raises(NotImplementedError):
            again.start(0)
    with pytest.raises(InputError, match="must compute in"):
        sums(again, torch.float32 if dtype is torch.float64 else torch.float64)


def _step(tree: Any, *step: Any) -> None:
    """In place of the last step."""
    (program,) = (tree["programs"][name] for name in ("coefficient", "scores") if name in tree["programs"])
    program["steps"][-1] = list(step)


def _program(tree: Any) -> Any:
    return next(tree["programs"][name] for name in ("coefficient", "scores") if name in tree["programs"])


CHANGES: dict[str, Callable[[Any], Any]] = {
    "no tree": lambda tree: [],
    "another kind": lambda tree: tree.update(kind="module"),
    "a path": lambda tree: tree.update(path="os:system"),
    "no programs": lambda tree: tree.update(programs={}),
    "sizes that are no sizes": lambda tree: tree.update(num_features=True),
    "another number of features": lambda tree: tree.update(num_features=7),
    "another number of outputs": lambda tree: tree.update(num_outputs=8),
    "an operation of no table": lambda tree: _step(tree, "roll.default", [{"value": 0}, [1], [0]], {}),
    "an attribute of torch": lambda tree: _step(tree, "__class__", [{"value": 0}], {}),
    "a name that is none": lambda tree: _step(tree, ["add.Tensor"], [{"value": 0}, 1], {}),
    "a reference forwards": lambda tree: _step(tree, "exp.default", [{"value": 999}], {}),
    "a reference backwards from the end": lambda tree: _step(tree, "exp.default", [{"value": -1}], {}),
    "a reference that is no number": lambda tree: _step(tree, "exp.default", [{"value": True}], {}),
    "a tensor where a number stands": lambda tree: _step(
        tree, "sum.dim_IntList", [{"value": 0}, [{"value": 1}], False], {}
    ),
    "axes from the back": lambda tree: _step(tree, "sum.dim_IntList", [{"value": 0}, [-1], False], {}),
    "no axes": lambda tree: _step(tree, "sum.dim_IntList", [{"value": 0}, [], False], {}),
    "an option of its own": lambda tree: _step(tree, "exp.default", [{"value": 0}], {"out": {"value": 0}}),
    "too few arguments": lambda tree: _step(tree, "exp.default", [], {}),
    "deep lists": lambda tree: _step(tree, "cat.default", [[[[{"value": 0}]]], 0], {}),
    "a device": lambda tree: _step(tree, "_to_copy.default", [{"value": 0}], {"dtype": {"dtype": "float16"}}),
    "a result too large": lambda tree: _step(
        tree, "constant_pad_nd.default", [{"value": 0}, [0, 10**12], 0], {}
    ),
    "a whole number too large": lambda tree: _step(tree, "add.Tensor", [{"value": 0}, 10**30], {}),
    "another output": lambda tree: _program(tree).update(output=0),
    "an output that is not there": lambda tree: _program(tree).update(output=10**6),
    "another record": lambda tree: _program(tree)["record"][0].__setitem__(0, [2, 6]),
    "a record of another type": lambda tree: _program(tree)["record"][0].__setitem__(1, "int64"),
    "parameters of its own": lambda tree: _program(tree)["parameters"].append(["w", [3], "float64"]),
    "too many steps": lambda tree: _program(tree).update(steps=_program(tree)["steps"] * 20_001),
    "no steps": lambda tree: _program(tree).update(steps=None),
}


HARMLESS = {("loss", "another number of features"), ("loss", "another output")}
"""Other problems, and problems all the same."""


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in ("loss", "chain") for change in CHANGES if (name, change) not in HARMLESS],
)
def test_what_is_no_program_of_one_record_is_refused(name: str, change: str) -> None:
    tree, arrays = described(PROBLEMS[name], torch.float64)
    tree = copy.deepcopy(tree)
    changed = CHANGES[change](tree)
    with pytest.raises(InputError, match="must"):
        given(tree if changed is None else changed, arrays, torch.float64)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"coefficient.0": torch.zeros(3, dtype=torch.complex64)},
        {"other": torch.zeros(3)},
        {"coefficient.0": 3},
    ],
    ids=["none", "complex", "another name", "a number"],
)
def test_constants_that_are_not_as_described_are_refused(arrays: dict[str, Any]) -> None:
    tree, _ = described(PROBLEMS["loss"], torch.float64)
    with refused("scenario.problem", "what its process sent"):
        given(tree, arrays, torch.float64)


def test_hooks_on_all_modules_run_nowhere_on_records() -> None:
    problem = PROBLEMS["tokens"]
    before = sums(problem, torch.float64)
    calls: list[object] = []
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(lambda *given: calls.append(given)),
        nn.modules.module.register_module_forward_hook(lambda *given: calls.append(given)),
    ]
    try:
        after = sums(problem, torch.float64)
    finally:
        for hook in hooks:
            hook.remove()
    assert not calls
    assert torch.equal(before, after)


def _products(operation: str, *arguments: Any) -> Any:
    """A network whose scores take this operation on images or matrices of 2,048 x 2,048 equal numbers."""
    rank = 2 if operation == "mm.default" else 4
    shape = [1] * (rank - 2) + [2048, 2048]
    steps: list[Any] = [
        ["sum.dim_IntList", [{"value": 1}, [0, 1], False], {}],
        ["expand.default", [{"value": 2}, shape], {}],
        ["expand.default", [{"value": 2}, [*shape[:-2], 17, 17]], {}],
        [operation, list(arguments), {}],
        *([["getitem", [{"value": 5}, 0], {}]] if operation.startswith("max") else []),
    ]
    last = len(steps) + 1
    steps += [
        ["sum.dim_IntList", [{"value": last}, list(range(rank)), False], {}],
        ["add.Tensor", [{"value": last + 1}, {"value": 0}], {}],
    ]
    program = {
        "parameters": [["w", [2], "float64"]],
        "record": [[[1, 5], "float64"]],
        "steps": steps,
        "output": last + 2,
    }
    head = {"num_features": 5, "num_outputs": 2, "kind": "network", "shapes": [["w", [2]]]}
    return head | {"programs": {"scores": program}}


IMAGE = {"value": 3}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("mm.default", (IMAGE, IMAGE)),
        ("convolution.default", (IMAGE, {"value": 4}, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
        ("avg_pool2d.default", (IMAGE, [17, 17], [1, 1], [0, 0], False, True, None)),
        ("max_pool2d_with_indices.default", (IMAGE, [17, 17], [1, 1], [0, 0], [1, 1], False)),
    ],
)
def test_a_program_that_takes_too_long_for_one_record_is_refused(
    operation: str, arguments: tuple[Any, ...]
) -> None:
    with refused("scenario.problem", "what its process sent", "multiplications"):
        given(_products(operation, *arguments), {}, torch.float64)
    smaller = json.loads(json.dumps(_products(operation, *arguments)).replace("2048", "64"))
    assert given(smaller, {}, torch.float64).dimension == 2


def test_a_program_that_holds_too_much_for_one_record_is_refused() -> None:
    tree = _products("neg.default", IMAGE)
    steps = tree["programs"]["scores"]["steps"]
    steps[4:4] = [["neg.default", [IMAGE], {}]] * 16
    for step in steps[20:]:
        for value in step[1]:
            if isinstance(value, dict) and value["value"] > 4:
                value["value"] += 16
    tree["programs"]["scores"]["output"] += 16
    with refused("scenario.problem", "what its process sent", "67,108,864 numbers"):
        given(tree, {}, torch.float64)
