"""Gradients of networks on a device: shapes on one without numbers, numbers on the CPU by another name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refused

import fedsim
from fedsim.deployment.offers import deployable
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Lenet, Mlp
from fedsim.report.privacy_statement import how
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation import host
from fedsim.simulation.trial import read
from fedsim.testing.attacks.setting import prepare
from server.participation import admitted_rounds, schedule
from silos.vault.network import layerwise
from silos.vault.records import Records, clipped_sum

CUDA = {"runtime": {"name": "inprocess", "device": "cuda", "dtype": "float32"}}
BASE: dict[str, Any] = {
    "name": "on a device",
    "data": {"name": "synthetic", "rows": 60, "features": 5},
    "partition": {"name": "size", "partition_sizes": [10, 20, 30]},
    "problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}},
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 0.5},
    "privacy": {"epsilon": 1.0},
    "report": {"baselines": False, "nonprivate_baseline": False, "clipping": False},
} | CUDA
STAND_IN = "cpu:0"  # a name of the CPU that is not the default's, so that tensors go there and come back
NETWORKS = {
    "mlp": NeuralNetwork(5, 3, model=Mlp((8,))),
    "regression": NeuralNetwork(5, 1, model=Mlp((8,))),
    "cnn": NeuralNetwork(784, 10, model=Lenet((1, 28, 28))),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("num_points", [1, 2])
def test_every_tensor_of_a_pass_is_on_the_device(name, num_points):
    """A meta tensor meets none of the CPU's without an error."""
    problem, count = replace(NETWORKS[name], device="meta"), 6
    x, y = torch.zeros(count, problem.num_features, device="meta"), torch.zeros(count, device="meta")
    points = [problem.start(k).to("meta") for k in range(num_points)]
    weight = torch.zeros(2, 3, dtype=torch.float64, device="meta")
    found = layerwise(problem, torch.float32, points)(x, y)
    sizes = {key: (2, shape.numel()) for key, shape in problem.shapes.items()}
    into = {key: torch.zeros(size, dtype=torch.float64, device="meta") for key, size in sizes.items()}
    for prefix, term in found:
        term.add(weight, into, prefix)
        assert (term.square.shape, term.square.device.type) == ((count,), "meta")
        term.clear(torch.zeros(count, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("own", [False, True], ids=["one clip", "own clips and points"])
def test_sums_on_the_device_are_those_of_the_cpu(name, own):
    """Twice in turn, so that records which stay there are taken for no others."""
    problem = NETWORKS[name]
    rng = np.random.default_rng(0)
    sizes = [3, 8, 6]
    data = [(rng.normal(size=(n, problem.num_features)), np.arange(n) % 3.0) for n in sizes]
    records = Records(data, problem, torch.float32)
    point = problem.start(0)
    blocks = [*records.full(range(3)), *records.batch(range(3), [np.arange(n // 2, n) for n in sizes])]
    for block in [*blocks, *blocks]:
        silos = len(block.members)
        points = [torch.stack([point] * silos) if own else point, 0.5 * point]
        clip = torch.linspace(0.1, 1, silos).double()[:, None] if own else 0.3
        expected = clipped_sum(problem, block, points, clip)
        found = clipped_sum(replace(problem, device=STAND_IN), block, points, clip)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
        assert found.device.type == "cpu"


def answers(resolved: Resolved) -> torch.Tensor:
    """The noisy answers of a run's first round."""
    silos, count = host.SiloHost(resolved, 0, read(resolved, 0)), len(resolved.names)
    rounds = schedule(count, resolved.active, resolved.trace.holds, 0, 0)
    silos.open("private", admitted_rounds(resolved.active, rounds, count))
    broadcast = {name: resolved.problem.start(0) for name, _ in resolved.trace.broadcasts[0]}
    return torch.stack([*silos.answer("private", 0, broadcast, rounds[0]).values()])


def test_a_run_on_the_device_draws_the_noise_of_a_run_on_the_cpu(monkeypatch):
    monkeypatch.setattr(host, "_open_cuda", lambda: None)
    there = resolve(parse(BASE))
    assert there.problem.device == "cuda"
    there = replace(there, problem=replace(there.problem, device=STAND_IN))
    here = resolve(parse(BASE | {"runtime": CUDA["runtime"] | {"device": "cpu"}}))
    torch.testing.assert_close(answers(there), answers(here), rtol=1e-3, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_a_run_says_so():
    with refused("scenario.runtime.device", "cuda", "no CUDA device is here"):
        fedsim.simulate(BASE, progress=False)


SUMS = {"mechanism": "summed_gaussian", "honest_fraction": 1.0, "epsilon": 1.0, "delta": 1e-5}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linear model": ({"problem": {"name": "logistic_regression"}}, "networks only"),
    "module that is captured": (
        {
            "problem": {
                "name": "neural_network",
                "model": {"name": "module", "path": "support.network_modules:Wide"},
            }
        },
        "chains",
    ),
    "discrete noise": ({"privacy": SUMS}, "discrete"),
    "preparation": ({"prepare": [{"name": "standardise", "share": 0.1}]}, "prepare"),
    "ray": ({"runtime": {"device": "cuda"}}, "inprocess"),
}


@pytest.mark.parametrize(("changes", "word"), REFUSED.values(), ids=REFUSED)
def test_what_a_device_is_not_for_is_refused(changes, word):
    with refused("scenario.runtime.device", "cuda", "cpu", word):
        resolve(parse(BASE | changes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_statement_says_that_a_devices_terms_are_not_exact(dtype):
    resolved = resolve(parse(BASE | {"runtime": BASE["runtime"] | {"dtype": dtype}}))
    lines = how(resolved)["notices"]
    assert [line.partition(":")[0] for line in lines] == ["cuda", "float32"][: 1 + (dtype == "float32")]


def test_deployed_silos_and_audits_refuse_a_device():
    with refused("scenario.runtime.device", "cuda", "cpu", "simulations"):
        deployable(parse(BASE))
    with refused("scenario.runtime.device", "cuda", "cpu", "audits"):
        prepare(resolve(parse(BASE)))
