"""The seed, which removes the noise, is where a run is repeated from, and nowhere that is read by others."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file
from support.scenarios import SMALL, simulate
from typer.testing import CliRunner

import fedsim
from fedsim.cli.main import app
from fedsim.scenario.load import load

SEED = 918273645918273
KEPT = {"scenario.yaml", "record.sqlite", "failed"}
"""What repeats a run or sweep, and has its seed."""


def with_the_seed(directory: Path) -> set[str]:
    """The files and folders of a directory in which the seed stands."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {file.relative_to(directory).parts[0] for file in files if str(SEED).encode() in file.read_bytes()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("seeded"), SMALL | {"seed": SEED})


def test_a_run_s_page_and_summary_do_not_have_it(run: Path) -> None:
    assert with_the_seed(run) == {"scenario.yaml"}
    page = (run / "report.html").read_text()
    assert "Without its seed" in page
    assert "num_rounds: 6" in page


def test_the_page_made_again_does_not_have_it_either(run: Path) -> None:
    """Also where a person has written into the scenario."""
    path = run / "scenario.yaml"
    before = path.read_text()
    path.write_text(before.replace("\nseed:", "\n# as ever\n'seed' :"))
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0
    path.write_text(before)
    assert with_the_seed(run) == {"scenario.yaml"}


def test_the_scenario_repeats_the_run_and_says_what_sharing_it_means(run: Path) -> None:
    assert load(run / "scenario.yaml").seed == SEED
    first, second, *_ = (run / "scenario.yaml").read_text().splitlines()
    assert first.startswith("# Anyone who has this file can draw the noise again")
    assert "only with those who may" in second


def test_private_models_lie_alone(run: Path) -> None:
    found = {file.stem: set(load_file(file)) for file in run.glob("*.safetensors")}
    assert found == {
        kind: {f"trial-{trial}.{variant}" for trial in range(2)}
        for kind, variant in (("model", "private"), ("nonprivate_baseline", "nonprivate"))
    }


def test_a_run_without_a_twin_has_no_file_of_one(tmp_path: Path) -> None:
    alone = simulate(tmp_path, SMALL | {"trials": 1, "report": {"nonprivate_baseline": False}})
    assert [file.name for file in alone.glob("*.safetensors")] == ["model.safetensors"]


def swept(folder: Path, grid: dict[str, list[object]]) -> Path:
    (folder / "scenario.yaml").write_text(yaml.safe_dump(SMALL | {"seed": SEED, "sweep": {"grid": grid}}))
    out = folder / "out"
    CliRunner().invoke(app, ["sweep", str(folder / "scenario.yaml"), "--out", str(out)])
    return out


def test_a_sweep_s_page_and_summary_do_not_have_it(tmp_path: Path) -> None:
    out = swept(tmp_path, {"privacy.epsilon": [1.0, 1e-7], "privacy.delta": [1e-12]})
    assert with_the_seed(out) == KEPT
    assert "Without its seed" in (out / "report.html").read_text()
    assert (out / "scenario.yaml").read_text().startswith("# Anyone who has this file")


def test_seeds_that_are_varied_are_shown_and_listed_as_not_private(tmp_path: Path) -> None:
    out = swept(tmp_path, {"seed": [SEED, SEED + 1]})
    assert "report.html" in with_the_seed(out)
    assert "the seeds stand here" in (out / "report.html").read_text()


def test_what_is_shown_of_records_in_memory_is_no_hash_of_them(tmp_path: Path) -> None:
    """Whoever knows all records but one could try each value of that one."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    data = fedsim.Arrays(rows, (rows[:, 0] > 0).astype(int), ["a", "b"] * 20)
    run = fedsim.simulate(
        "breast_cancer", data=data, trials=1, runtime="inprocess", num_rounds=2, epsilon=2.0
    )
    run.save(tmp_path / "run")
    for shown in (run.scenario, fedsim.load_run(tmp_path / "run").scenario):
        assert "features: <f8(40, 2)\n" in shown
        assert "sha256" not in shown
    assert "sha256" not in (tmp_path / "run" / "report.html").read_text()
