"""The guides for problems, data sets, networks and memory: their code, run."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.distribution import ROOT, install, python
from support.distribution import fedsim as command
from support.helpers import drive, open_gate, public_of
from torch import nn

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import InputError
from fedsim.problems.kinds import check
from fedsim.problems.network_form import check as check_network

GUIDES = ("adding-a-problem", "adding-a-data-set", "adding-a-network", "memory")
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in GUIDES}


def files(page: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGES[page], re.S))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of one page, whose modules can be imported."""
    for name, text in files(request.param).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in tmp_path.glob("*.py"):
        sys.modules.pop(module.stem, None)


def on(page: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", [page], indirect=True)


@pytest.mark.parametrize("place", ["adding-a-problem", "adding-a-network", "memory"], indirect=True, ids=str)
def test_what_a_guide_has_run_runs(place: Path, request: pytest.FixtureRequest) -> None:
    blocks = re.findall(
        r"<!-- run -->\n```python\n(.*?)```", PAGES[request.node.callspec.params["place"]], re.S
    )
    assert len(blocks) == 1
    exec(blocks[0], {})


def test_links_of_the_guides_exist() -> None:
    for page in PAGES.values():
        for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page):
            assert (ROOT / "docs" / target).exists(), target
        for target in re.findall(r"`(fedsim/\S+\.py)`", page):
            assert (ROOT / target).exists(), target


@on("adding-a-problem")
def test_the_problem_is_minimised_in_the_gate(place: Path) -> None:
    """Without noise, to where the derivative of its losses is zero."""
    problem = import_module("pseudo_huber").PseudoHuber(num_features=2)
    rng = np.random.default_rng(0)
    data = [(x, x @ [1.0, -0.5] + rng.standard_cauchy(40)) for x in rng.normal(size=(3, 40, 2))]
    algorithm = NoisyMinibatchSGD(num_rounds=200, step_size=1.0, clip_norm=9.0, last_iterate=True)
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    w = drive(gate, algorithm, problem, public_of((40,) * 3), [[0, 1, 2]] * 200)[-1].answer.requires_grad_()
    loss = sum(problem.losses(torch.tensor(x) @ w, torch.tensor(y)).mean() for x, y in data)
    loss.backward()
    assert float(w.grad.norm()) < 1e-6


REFUSED = {
    "decides by a value": lambda scores: scores * 2 if scores.sum() > 0 else scores,
    "takes a number out": lambda scores: scores * scores.sum().item(),
    "NumPy": lambda scores: torch.from_numpy(np.tanh(scores.numpy())),
    "draws": lambda scores: scores + torch.rand_like(scores),
    "writes": lambda scores: scores.sub_(1.0),
    "another shape": lambda scores: scores.sum(),
}


@pytest.mark.parametrize("way", REFUSED)
@on("adding-a-problem")
def test_what_the_problems_guide_says_is_refused_is(place: Path, way: str) -> None:
    @dataclass(frozen=True)
    class Wrong(import_module("pseudo_huber").PseudoHuber):
        def coefficient(self, scores: Any, target: Any, inverse_norm: Any) -> Any:
            return REFUSED[way](scores)

    with pytest.raises(InputError, match="'Wrong': its coefficient must"):
        check(Wrong(num_features=2), torch.float64)


@on("adding-a-data-set")
def test_the_data_set_can_be_learned_from(place: Path) -> None:
    tree = yaml.safe_load((place / "scenario.yaml").read_text())
    section = tree.pop("data")
    assert section.pop("name") == "two_moons"
    data = import_module("two_moons").TwoMoons(**section)
    run = fedsim.simulate(tree | {"data": "breast_cancer"}, data=data, trials=1)
    assert run.summary.metrics.error < 0.25
    assert sum(silo.n for silo in run.summary.privacy.silos) == 640


@pytest.mark.slow
@on("adding-a-network")
def test_the_network_trains(place: Path) -> None:
    run = fedsim.simulate("scenario.yaml", trials=1, num_rounds=20)
    assert run.summary.metrics.error < 0.4


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), "GroupNorm or LayerNorm"),
        (nn.Linear(4, 2).requires_grad_(False), "register them as buffers"),
        (nn.LazyLinear(2), "give every layer its sizes"),
    ],
)
def test_a_refused_network_is_told_what_to_use_instead(module: nn.Module, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_network(module, 4, 2)


@on("memory")
def test_the_algorithm_that_remembers_runs(place: Path) -> None:
    mine = import_module("own_momentum").OwnMomentum(num_rounds=20, step_size=1.0, clip_norm=1.0)
    run = fedsim.simulate("breast_cancer", algorithm=mine, trials=1, epsilon=4.0, runtime="inprocess")
    assert run.summary.metrics.error < 0.2
    assert all(silo.epsilon_guaranteed <= 4 for silo in run.summary.privacy.silos)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["adding-a-problem", "adding-a-data-set"], indirect=True)
def test_a_package_adds_it_to_scenarios(place: Path) -> None:
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    modules = {module.stem: module.read_text() for module in place.glob("*.py")}
    install(place / "site", project["name"], modules, project["entry-points"])
    done = command("simulate", place / "scenario.yaml", "--out", place / "run", site=place / "site")
    assert done.returncode == 0, done.stderr


# docs/adding-an-algorithm.md, done: its file, its row with the shared and rate tests, its scenario.

PAGE = (ROOT / "docs" / "adding-an-algorithm.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- (?:file: )?(\S+) -->\n```\w+\n(.*?)```", PAGE, re.S))
SOURCE = BLOCKS["fedsim/algorithms/momentum_minibatch_sgd.py"]

# Loaded before the tests: what adding the file to the package and the row to the table would do.
PLUGIN = """
import fedsim.algorithms
fedsim.algorithms.__path__.append({folder!r})
from support import algorithm_table
imports, row = {row!r}.split("\\nRow(", 1)
exec(imports, vars(algorithm_table))
algorithm_table.ROWS += (eval("Row(" + row, vars(algorithm_table)),)
"""


@pytest.mark.slow
def test_the_file_passes_the_shared_tests_and_the_rate_test_by_its_row(tmp_path: Path) -> None:
    folder = tmp_path / "algorithms"
    folder.mkdir()
    (folder / "momentum_minibatch_sgd.py").write_text(SOURCE, encoding="utf-8")
    plugin = PLUGIN.format(folder=str(folder), row=BLOCKS["row"])
    (tmp_path / "walkthrough.py").write_text(plugin, encoding="utf-8")
    rates = "tests/algorithms/test_rates.py::test_the_excess_risk_has_the_theorems_exponent"
    selected = [
        "tests/algorithms/test_algorithm_contract.py",
        "tests/algorithms/test_through_scenarios.py",
        *(f"{rates}[momentum_minibatch_sgd-{variable}]" for variable in ("eps", "n")),
    ]
    options = [
        "-q",
        "-p",
        "walkthrough",
        "-p",
        "no:cacheprovider",
        "-k",
        "registered or (momentum and not softmax)",
    ]
    done = python("-m", "pytest", *options, *selected, paths=(tmp_path, ROOT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 18


@pytest.mark.slow
def test_the_package_adds_it_to_the_command_line(tmp_path: Path) -> None:
    project = tomllib.loads(BLOCKS["pyproject.toml"])
    (module,) = project["tool"]["setuptools"]["py-modules"]
    name, points = project["project"]["name"], project["project"]["entry-points"]
    install(tmp_path / "site", name, {module: SOURCE}, points)
    scenario = tmp_path / "momentum.yaml"
    scenario.write_text(BLOCKS["scenarios/momentum.yaml"], encoding="utf-8")
    done = command("simulate", scenario, "--out", tmp_path / "run", site=tmp_path / "site")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 20
    assert summary["metrics"]["error"] < 0.2
    assert all(0.97 * 2 <= silo["epsilon_guaranteed"] <= 2 for silo in summary["privacy"]["silos"])


def test_the_commands_of_the_page_are_those_that_were_run() -> None:
    commands = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    assert [line for block in commands for line in block.splitlines()] == [
        "pytest tests/algorithms -k momentum_minibatch_sgd",
        "fedsim privacy scenarios/momentum.yaml",
        "fedsim simulate scenarios/momentum.yaml",
    ]
