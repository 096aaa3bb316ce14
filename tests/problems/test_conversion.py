"""Constants that a function makes, and what of torch's has no place in a program, by its name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedsim.problems import conversion
from fedsim.problems.capture import FunctionModule, NotCapturedError, capture

ROW = torch.tensor([0.5, -1.0, 2.0, 3.0])

CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "eye": lambda x: torch.eye(4) @ x,
    "eye, one row more, of whole numbers": lambda x: (torch.eye(5, 4, dtype=torch.int64) * x).sum(1),
    "eye, large, as the record is": lambda x: torch.eye(300, 4, dtype=x.dtype, device=x.device) @ x,
    "eye of truth values": lambda x: torch.where(torch.eye(4, dtype=torch.bool), x, -x),
    "arange": lambda x: torch.arange(4) * x,
    "arange, backwards": lambda x: torch.arange(4.0, 0, -1) * x,
    "arange in steps": lambda x: torch.arange(0, 1, 0.25, dtype=torch.float64) * x,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_a_function_makes_is_in_its_program(name: str) -> None:
    program = capture(FunctionModule(CONSTANTS[name]), ROW)
    for row in (ROW, ROW.flip(0)):
        assert torch.equal(program({}, row), CONSTANTS[name](row))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: torch.eye(20_000)[:4, :4] @ x, r"eye\.default gives \(20000, 20000\)"),
        (lambda x: torch.eye(4, dtype=torch.float16) @ x.half(), r"eye\.default gives .* torch\.float16"),
        (lambda x: torch.arange(4, dtype=torch.uint8) * x, r"arange\.start_step gives .* torch\.uint8"),
        (lambda x: torch.arange(10**9).sum() + x, r"arange\.start_step gives \(1000000000,\)"),
        (lambda x: torch.arange(2, dtype=torch.bool)[0] * x, r"arange\.start_step cannot be applied"),
        (lambda x: torch.full((4,), 3, dtype=torch.uint8) * x, r"full\.default gives .* torch\.uint8"),
    ],
)
def test_a_constant_that_cannot_be_in_a_program_is_refused_by_its_operation(
    function: Callable[[Tensor], Tensor], named: str
) -> None:
    with pytest.raises(NotCapturedError, match=f"its operation (aten.)?{named}"):
        capture(FunctionModule(function), ROW)


def test_whatever_a_rewrite_raises_is_a_refusal_of_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise KeyError("dim")

    monkeypatch.setitem(conversion._REWRITES, torch.ops.aten.mul.Tensor, broken)
    with pytest.raises(
        NotCapturedError, match=r"its operation aten\.mul\.Tensor cannot be applied: KeyError"
    ):
        capture(FunctionModule(lambda x: x * x), ROW)
