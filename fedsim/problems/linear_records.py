"""A linear problem that is not built in, applied to records: its code sees one record at a time.

Built-in losses act on each number alone. A problem of another distribution gives its loss by a derivative,
`coefficient`, and by the targets that it is defined for, `accepts`. Both run as graphs of one record
(`fedsim.problems.capture`), whatever they would do to a batch; what they are handed is never a stored tensor.
Scores are always x W, whatever a problem makes of `scores`. A subclass of a built-in problem is another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

import torch

from fedsim.common.errors import InputError
from fedsim.problems.capture import FunctionModule, capture, each, largest_tile, made_up, tile_of
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.operations import NotCapturedError
from fedsim.problems.program import Program

if TYPE_CHECKING:
    from torch import Tensor


def coefficient(problem: GeneralisedLinear, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
    """As `fedsim.problems.kinds.coefficient`, of a problem that is not built in."""
    shape, own = scores.shape[: target.dim()], scores.shape[target.dim() :]
    one = one_record(problem, scores.dtype)["coefficient"]
    rows = [scores.reshape(-1, 1, *own)]
    rows += [value.expand(shape).reshape(-1, 1) for value in (target, inverse_norm)]
    return _applied(one, tuple(own), *rows).view(scores.shape)


def accepts(problem: GeneralisedLinear, target: Tensor) -> Tensor:
    """Which targets the loss is defined for, a mask in the shape of `target`."""
    one = one_record(problem, target.dtype)["accepts"]
    return _applied(one, (), target.reshape(-1, 1)).view(target.shape) == 1  # NaN is not


def probabilities(problem: GeneralisedLinear, scores: Tensor) -> Tensor:
    """As `fedsim.problems.kinds.probabilities`, of a problem that is not built in and gives some."""
    one = _probabilities_of_one(problem, scores.dtype)
    return _applied(one, tuple(one.shape[1:]), scores.unsqueeze(1))


def _applied(one: Program, shape: tuple[int, ...], *rows: Tensor) -> Tensor:
    """(rows, *shape)."""
    value = partial(one, {}, exact=True)
    return each(lambda *row: value(*row).reshape(shape), shape, rows[0].dtype, *rows, tile=tile(one))


@lru_cache(maxsize=64)
def tile(one: Program) -> int:
    """Records at a time (`tile_of`)."""
    (_, dtype), *_ = one.record
    most = largest_tile(one.numbers, one.raises)
    made = made_up(*(shape for shape, _ in one.record), dtype=dtype)
    return tile_of(lambda *record: one({}, *record, exact=True).to(dtype), *made, tile=most)


@dataclass(frozen=True)
class GivenLinear(GeneralisedLinear):
    """A problem that is known only by the programs of one record, which another process captured."""

    programs: dict[str, Program] = field(default_factory=dict, hash=False)  # of `one_record`
    dtype: torch.dtype = torch.float64  # the type that they compute in
    error_name = "error that is measured elsewhere"

    def __post_init__(self) -> None:
        for name, record in _records(self, self.dtype).items():
            program, shape = self.programs[name], tuple(record[0].shape)
            given = tuple((tuple(each.shape), each.dtype) for each in record)
            if program.parameters or program.record != given or program.shape != shape:
                raise _wrong(self, name, f"must map {given} to {shape}")

    @classmethod
    def suits(cls, classes: int) -> bool:
        """It suits no target that a scenario names."""
        return False

    def accepts(self, target: Tensor) -> Tensor:
        """The result of the program."""
        return accepts(self, target)

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """The result of the program."""
        return coefficient(self, scores, target, inverse_norm)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """There is none."""
        raise NotImplementedError("the loss is known where its code may run")

    error = losses


def _records(problem: GeneralisedLinear, dtype: torch.dtype) -> dict[str, tuple[Tensor, ...]]:
    """Arguments of the methods for one record; the result has the shape of the first one."""
    scores = torch.zeros((1, problem.num_outputs) if problem.num_outputs > 1 else (1,), dtype=dtype)
    target, inverse_norm = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    return {"coefficient": (scores, target, inverse_norm), "accepts": (target,)}


@lru_cache(maxsize=16)
def one_record(problem: GeneralisedLinear, dtype: torch.dtype) -> dict[str, Program]:
    """`coefficient` and `accepts` of one record; InputError if one has no graph, or gives another shape."""
    if isinstance(problem, GivenLinear):
        if problem.dtype is not dtype:
            raise _wrong(problem, "programs", f"must compute in {dtype}")
        return problem.programs
    # sizes are whole numbers in fields, the same whenever they are read: scores are split by them
    for name in ("num_features", "num_outputs"):
        if type(getattr_static(problem, name)) is not int:
            raise _wrong(problem, name, "must be an int in a field of the dataclass")
    for name in ("dimension", "__getattribute__"):
        if getattr_static(type(problem), name) is not getattr_static(GeneralisedLinear, name):
            raise _wrong(problem, name, "must be that of GeneralisedLinear")
    found = {}
    for method, record in _records(problem, dtype).items():
        function = problem.coefficient if method == "coefficient" else problem.accepts
        captured = _captured(problem, method, function, *record)
        given = tuple(captured.shape)
        if given != tuple(record[0].shape):
            hint = f"must have shape {tuple(record[0].shape)} for one record, not {given}"
            raise _wrong(problem, method, hint)
        found[method] = captured
    return found


@lru_cache(maxsize=16)
def _probabilities_of_one(problem: GeneralisedLinear, dtype: torch.dtype) -> Program:
    scores = _records(problem, dtype)["coefficient"][0]
    one = _captured(problem, "probabilities", problem.probabilities, scores)
    if len(one.shape) != 2 or one.shape[0] != 1:
        hint = f"must have shape (1, classes) for one record, not {tuple(one.shape)}"
        raise _wrong(problem, "probabilities", hint)
    return one


def _captured(
    problem: GeneralisedLinear, method: str, function: Callable[..., Any], *record: Tensor
) -> Program:
    try:
        captured = capture(FunctionModule(function), *record)
        captured({}, *record)
    except (NotCapturedError, RuntimeError, TypeError) as error:
        hint = "must be operations of torch on tensors, the same whatever a record's values are"
        raise _wrong(problem, method, f"{hint} ({error})") from error
    return captured


def _wrong(problem: GeneralisedLinear, method: str, hint: str) -> InputError:
    return InputError("scenario.problem.name", type(problem).__name__, f"its {method} {hint}")
