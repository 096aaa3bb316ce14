"""What `import fedsim` gives, and what it does not import."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
from support import pages
from support.distribution import ROOT, python, unpacked

import fedsim
from fedsim.scenario.catalogue import shipped

NAMES = [
    "Algorithm",
    "Arrays",
    "Asker",
    "Audit",
    "Batch",
    "Comparison",
    "Components",
    "Count",
    "FULL",
    "FederatedClassifier",
    "FederatedRegressor",
    "Frame",
    "Fresh",
    "Full",
    "Histogram",
    "InputError",
    "Mean",
    "Memory",
    "Message",
    "Moments",
    "Part",
    "Poisson",
    "Price",
    "Public",
    "PublicProblem",
    "Quantiles",
    "Query",
    "Refused",
    "Released",
    "Round",
    "Run",
    "Scenario",
    "ServerHalf",
    "Subsample",
    "Sum",
    "Sweep",
    "Table",
    "WithReplacement",
    "__version__",
    "audit",
    "compare",
    "load_run",
    "price",
    "release",
    "simulate",
    "sweep",
]
HEAVY = (
    "torch",
    "ray",
    "numpy",
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "yaml",
)


def fresh_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert sorted(fedsim.__all__) == sorted(NAMES)
    assert dir(fedsim) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(fedsim, name)
    if callable(thing) and name != "ServerHalf":
        assert (thing.__doc__ or "").strip()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'simulte'"):
        fedsim.simulte  # noqa: B018


def test_an_import_brings_nothing_heavy() -> None:
    found = fresh_python("-c", f"import sys, fedsim; print([m for m in {HEAVY} if m in sys.modules])")
    assert found == "[]"


def test_functions_stay_functions_after_their_rooms_are_imported() -> None:
    """A submodule of the same name would take their place."""
    code = (
        "import fedsim, importlib, pkgutil\n"
        "for room in pkgutil.iter_modules(fedsim.__path__):\n"
        "    if room.name != '__main__': importlib.import_module('fedsim.' + room.name)\n"
        "names = [name for name in fedsim.__all__ if name.islower() and '_' not in name]\n"
        "functions = [getattr(fedsim, name) for name in names]\n"
        "print([thing for thing in functions if not callable(thing)], len(functions))"
    )
    assert fresh_python("-c", code) == "[] 6"


def test_the_version_is_the_distributions() -> None:
    assert fedsim.__version__ == version("fedsim-isrl")


def test_the_package_runs_as_the_command_line() -> None:
    assert fresh_python("-m", "fedsim", "--version") == f"fedsim {version('fedsim-isrl')}"


# Algorithms given as objects: by value to Ray's processes, with noise of their own.

ALGORITHM = """
    from dataclasses import dataclass
    import fedsim

    FACTOR = 2.0

    def stretched(g):
        return FACTOR * g

    @dataclass(frozen=True)
    class Mine:
        linear = True
        num_rounds: int
        batch: fedsim.Batch = fedsim.FULL

        def server(self, w, problem, public, rng):
            for _ in range(self.num_rounds):
                mean = yield fedsim.Round({"w": w}, answer=w)
                w = problem.project(w - stretched(mean["g"]))
            return w

        def silo(self, problem, broadcast, ask, memory):
            return {"g": ask(fedsim.Query("gradient", (broadcast["w"],), 1.0, self.batch))}
"""
RUNS = """
    runs = [
        fedsim.simulate(
            "quickstart", algorithm=Mine(3), trials=1, epsilon=2.0, runtime=runtime, nonce="0" * 32
        )
        for runtime in ("inprocess", {"name": "ray", "silo_hosts": 1})
    ]
    print((runs[0].model == runs[1].model).all(), runs[0].ledger.to_pylist() == runs[1].ledger.to_pylist())
    print(runs[1].summary.algorithm, "Mine" in runs[1].scenario)
"""


def dedent(*parts: str) -> str:
    return "".join(map(textwrap.dedent, parts))


@pytest.mark.slow
def test_a_class_of_a_script_from_standard_input_runs_on_ray_as_in_process(tmp_path: Path) -> None:
    done = python("-", paths=(), cwd=tmp_path, stdin=dedent(ALGORITHM, RUNS))
    assert done.stdout.split() == ["True", "True", "Mine", "True"], done.stderr


@pytest.mark.slow
def test_a_class_of_a_module_that_only_the_caller_finds_runs_on_ray(tmp_path: Path) -> None:
    """The module's folder is put on the path after the start, so no other process knows it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text(dedent(ALGORITHM), encoding="utf-8")
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport fedsim\nfrom mine import Mine\n"
    done = python("-", paths=(), cwd=tmp_path, stdin=start + dedent(RUNS))
    assert done.stdout.split() == ["True", "True", "Mine", "True"], done.stderr


# The wheel brings all that a person needs: scenarios, templates, types.

_IN_PACKAGE = ROOT / "fedsim" / "scenario" / "shipped"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy and unpacked."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    return unpacked(".", source, site)


def test_a_scenario_is_a_name_in_a_checkout() -> None:
    files = [path for path in (ROOT / "scenarios").rglob("*.yaml") if not path.stem.endswith(".schema")]
    assert shipped() == {path.stem: _IN_PACKAGE / path.relative_to(ROOT / "scenarios") for path in files}
    assert len(files) == len(shipped())
    assert "mnist_logistic" in shipped()


@pytest.mark.slow
def test_the_wheel_has_scenarios_templates_and_types(site: Path) -> None:
    names = {str(path.relative_to(site / "fedsim")) for path in (site / "fedsim").rglob("*")}
    assert {f"scenario/shipped/{path.relative_to(_IN_PACKAGE)}" for path in shipped().values()} <= names
    assert {
        "py.typed",
        "__main__.py",
        "report/templates/report.html",
        "cli/package/algorithm.py.txt",
    } <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "fedsim", "simulate", "quickstart", "--set", "trials=1", "--runtime", "inprocess"),
        ("-m", "fedsim", "privacy", "quickstart"),
        ("-c", pages.notebook(ROOT / "examples" / "first_run.ipynb")[0]),
    ],
    ids=["simulate", "privacy", "first_run.ipynb"],
)
def test_a_scenario_runs_by_name_from_the_wheel(site: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where = [sys.executable, "-c", "import fedsim; print(fedsim.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(site))


# The notebooks run from an empty directory and show what they are kept with.

EXAMPLES = sorted((ROOT / "examples").glob("*.ipynb"))
QUICK = "first_run"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == QUICK else pytest.mark.slow) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_shows_what_is_kept_and_writes_nothing(path: Path, tmp_path: Path) -> None:
    code, shown = pages.notebook(path)
    script, folder = tmp_path / "script.py", tmp_path / "empty"
    script.write_text(code, encoding="utf-8")
    folder.mkdir()
    done = python("-W", "error::UserWarning", script, paths=(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert pages.disagreement(shown, done.stdout) is None, done.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" for output in outputs)
    assert sum(cell["cell_type"] == "markdown" for cell in cells) >= 3


def test_there_are_three() -> None:
    assert [path.stem for path in EXAMPLES] == ["first_run", "own_algorithm", "privacy_and_audit"]
