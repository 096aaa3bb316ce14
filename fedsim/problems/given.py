"""Problems as data, sent by the process that runs untrusted code to the process that holds records.

The message is a tree of lists, names and numbers, and tensors. It is untrusted: programs are checked
(`fedsim.problems.program`) and must have the shapes of one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.problems.linear_records import GivenLinear, one_record
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_form import Graph, graph_of, no_graph
from fedsim.problems.operations import LARGEST, NotAllowedError, NotCapturedError
from fedsim.problems.program import Program, Shape

if TYPE_CHECKING:
    from fedsim.problems.kinds import Problem
    from fedsim.problems.network_form import Form

FIELD = "scenario.problem"
_METHODS = {"linear": ("coefficient", "accepts"), "network": ("scores",)}


@dataclass(frozen=True)
class GivenNetwork(NeuralNetwork):
    """A network that is known only by its parameters' shapes and the program of one record."""

    parameter_shapes: tuple[tuple[str, Shape], ...] = ()  # name and shape of each, in the flat vector's order
    program: Program | None = None  # one record's scores
    dtype: torch.dtype = torch.float64  # the type that it computes in

    def __post_init__(self) -> None:
        shapes, program = dict(self.parameter_shapes), self.program
        if len(shapes) < len(self.parameter_shapes) or not 1 <= self.dimension <= LARGEST:
            raise _wrong(f"must have each parameter once, and 1 to {LARGEST:,} numbers in all")
        if program is None or any(
            shapes.get(name) != shape or dtype is not self.dtype for name, shape, dtype in program.parameters
        ):
            raise _wrong("must read parameters of its own, in their shapes and type")
        record = (((1, self.num_features), self.dtype),)
        if program.record != record or prod(program.shape) != self.num_outputs:
            raise _wrong(f"must map one record, {record}, to {self.num_outputs} scores")

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes that were given."""
        return {name: torch.Size(shape) for name, shape in self.parameter_shapes}

    def _built(self, seed: int) -> torch.nn.Module:
        raise NotImplementedError("the module is built where its code may run")

    def form(self, dtype: torch.dtype) -> Form:
        """Its program."""
        if dtype is not self.dtype or self.program is None:
            raise _wrong(f"must compute in {dtype}")
        return Graph(self.program, self.num_outputs)


def described(problem: Problem, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The problem as data, for `given`; its code runs here. InputError if it is none of one record alone."""
    tree: dict[str, Any] = {"num_features": problem.num_features, "num_outputs": problem.num_outputs}
    if isinstance(problem, NeuralNetwork):
        tree |= {"kind": "network", "shapes": [[name, list(shape)] for name, shape in problem.shapes.items()]}
        try:
            graph = graph_of(problem.module, problem.num_features, problem.num_outputs, dtype)
        except NotCapturedError as error:
            raise no_graph(problem.module, error) from None
        programs = {"scores": graph.record}
    else:
        tree, programs = tree | {"kind": "linear"}, one_record(problem, dtype)
    arrays: dict[str, Tensor] = {}
    tree["programs"] = {}
    for method, program in programs.items():
        tree["programs"][method], constants = program.to_data()
        arrays |= {f"{method}.{i}": torch.from_numpy(each) for i, each in enumerate(constants)}
    return tree, arrays


def given(tree: object, arrays: Mapping[str, Tensor], dtype: torch.dtype) -> GivenLinear | GivenNetwork:
    """The problem that was described, without regulariser or constraint: those are public. InputError if it
    is none, or one that a record must not be given to.
    """
    try:
        parts: dict[str, Any] = dict(tree)  # type: ignore[call-overload]
        sizes = parts.pop("num_features"), parts.pop("num_outputs")
        methods, written = _METHODS[parts.pop("kind")], parts.pop("programs")
        shapes = tuple((str(name), tuple(shape)) for name, shape in parts.pop("shapes", ()))
        numbers = [*sizes, *(size for _, shape in shapes for size in shape)]
        whole = all(type(n) is int and 1 <= n <= LARGEST for n in numbers)
        counts = {each: sum(name.startswith(f"{each}.") for name in arrays) for each in methods}
        named = [[arrays[f"{method}.{i}"] for i in range(counts[method])] for method in methods]
        if not whole or parts or set(written) != set(methods) or sum(map(len, named)) != len(arrays):
            raise ValueError
        programs = {
            method: Program.from_data(written[method], [each.detach().numpy() for each in own])
            for method, own in zip(methods, named, strict=True)
        }
    except NotAllowedError as error:
        raise _wrong(f"must be operations on one record ({error})") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise _wrong("must be a problem as `described` gives it") from None
    if "scores" in programs:
        return GivenNetwork(*sizes, parameter_shapes=shapes, program=programs["scores"], dtype=dtype)
    return GivenLinear(*sizes, programs=programs, dtype=dtype)


def _wrong(hint: str) -> InputError:
    return InputError(FIELD, "what its process sent", hint)
