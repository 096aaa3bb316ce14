"""What a daemon tries of its machine and of an offer's problem."""

import os
import subprocess
import sys

import pytest
import torch

from fedsim.common.errors import Refused
from fedsim.problems import exact
from fedsim.problems.given import described, given
from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp
from silos.front import self_test
from silos.front.self_test import check_machine, check_problem, one_at_a_time

PROBLEMS = {
    "logistic": LogisticRegression(7),
    "softmax": SoftmaxRegression(7, 3),
    "mlp": NeuralNetwork(7, 2, model=Mlp((5,))),
    "lenet": NeuralNetwork(256, 3, model=Lenet((1, 16, 16))),
    "graph": NeuralNetwork(6, 3, model=Imported("support.network_modules:Wide")),
}


def by_place(function):
    """The function with a last bit more in every third row, as the last numbers of a loop may have."""

    def changed(x, *others):
        found = function(x, *others).clone()
        found[2::3] *= 1 + 2**-52
        return found

    return changed


@pytest.fixture(autouse=True)
def tried_anew():
    check_machine.cache_clear()
    yield
    check_machine.cache_clear()


def test_this_machine_passes():
    check_machine()
    for problem in PROBLEMS.values():
        check_problem(problem, torch.float64)
        assert not one_at_a_time(problem, torch.float64)


def test_a_network_that_another_process_captured_passes():
    check_problem(given(*described(PROBLEMS["graph"], torch.float64), torch.float64), torch.float64)


@pytest.mark.parametrize("name", ["tanh", "e^x", "log", "log1p"])
def test_a_function_that_rounds_by_place_is_found(monkeypatch, name):
    functions = self_test._FUNCTIONS
    monkeypatch.setattr("silos.front.self_test._FUNCTIONS", functions | {name: by_place(functions[name])})
    with pytest.raises(Refused, match=r"rounds .* by its place"):
        check_machine()


def test_a_row_that_is_rounded_by_its_place_is_found(monkeypatch):
    monkeypatch.setattr(exact, "sums", by_place(exact.sums))
    with pytest.raises(Refused, match="product of 1 numbers"):
        check_machine()


def test_products_of_float32_are_found(monkeypatch):
    monkeypatch.setattr(exact, "product", lambda a, b: (a.float() @ b.float()).double())
    with pytest.raises(Refused, match="NumPy's products"):
        check_machine()


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp", "lenet"])
def test_a_problem_whose_records_are_rounded_by_place_is_refused(monkeypatch, name):
    problem = PROBLEMS[name]
    kind = problem.head if isinstance(problem, NeuralNetwork) else problem
    own = kind.coefficient

    def coefficient(scores, target, inverse_norm):
        place = torch.arange(target.shape[-1]).view(-1, *[1] * (scores.dim() - target.dim()))
        return own(scores, target, inverse_norm) + 1e-6 * place

    monkeypatch.setattr(type(kind), "coefficient", staticmethod(coefficient))
    with pytest.raises(Refused, match="beside other records"):
        check_problem(problem, torch.float64)


@pytest.mark.slow
def test_a_kernel_that_rounds_by_address_is_found():
    """OpenBLAS's for processors before AVX begins a row at an address that 16 divides."""
    code = (
        "import sys; from threadpoolctl import threadpool_info; import silos.front.self_test as s\n"
        "kinds = {each.get('architecture') for each in threadpool_info()}\n"
        "sys.exit(3) if not kinds & {'Katmai', 'Prescott'} else s.check_machine()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OPENBLAS_CORETYPE": "Prescott"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 3:
        pytest.skip("this OpenBLAS has no such kernel")
    assert "rounds a product" in found.stderr
