"""A tracker of another distribution follows a run, and gets numbers made of records in simulation only."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.distribution import install
from support.scenarios import SMALL, invoke, refusal, simulate, write

import fedsim
from fedsim.api.given import resolved_of
from fedsim.api.run import load_run
from fedsim.report.outcome import Outcome, Results, TrialResult
from fedsim.report.record import Measurement, SiloMeasurement
from fedsim.report.trackers import Trackers, open_trackers
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve

MODULE = """
import json

class Lines:
    def __init__(self, simulation):
        self.lines = [["simulation", simulation]]
    def start(self, run):
        self.lines.append(["start", run["name"], run["silos"], sorted(run["scenario"])])
    def log(self, round_index, values):
        self.lines.append(["log", round_index, values])
    def finish(self):
        with open({path!r}, "w") as file:
            json.dump(self.lines, file)

class Broken(Lines):
    def log(self, round_index, values):
        raise ConnectionError("server is away")

def cannot(simulation):
    raise OSError("no directory")
"""
GIVEN = sorted(set(Scenario.model_fields) - {"seed", "nonce", "files"})
"""What a tracker is told of a scenario: not the seed, which removes the noise."""
PARTS = {"lines": "Lines", "broken": "Broken", "cannot": "cannot"}
POINTS = {name: f"tracker_of_a_test:{part}" for name, part in PARTS.items()}


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with trackers is installed; the file that they write."""
    site, path = tmp_path / "site", tmp_path / "lines.json"
    modules = {"tracker_of_a_test": MODULE.replace("{path!r}", repr(str(path)))}
    install(site, "tracker-dist", modules, {"fedsim.trackers": POINTS})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(__import__("sys").modules, "tracker_of_a_test", raising=False)
    return path


def with_trackers(*names: str) -> dict[str, Any]:
    return SMALL | {"report": {"trackers": list(names)}}


def refused(folder: Path, *names: str) -> str:
    line = refusal("simulate", write(folder, with_trackers(*names)), "--out", folder / "run")
    assert not (folder / "run").exists()
    return line


def test_a_tracker_follows_the_run(lines: Path, tmp_path: Path) -> None:
    simulate(tmp_path, with_trackers("lines"))
    first, second, *logs = json.loads(lines.read_text())
    assert first == ["simulation", True]
    assert second == ["start", "small", 3, GIVEN]
    rounds, silos = logs[:-2], logs[-2:]
    assert len(rounds) == 2 * 2 * 7
    assert rounds[0][1] == 0
    assert set(rounds[0][2]) == {
        f"trial-0/private/{key}"
        for key in ("error", "loss", "excess_risk", "gradient_mapping_sq", "participants", "seconds")
    }
    assert "trial-1/nonprivate/silo/silo-02/error" in silos[1][2]


def test_none_follows_unless_named(lines: Path, tmp_path: Path) -> None:
    simulate(tmp_path, SMALL)
    assert not lines.exists()


def test_outside_simulation_nothing_made_of_records_is_passed_on(lines: Path) -> None:
    resolved, complaints = resolve(parse(SMALL)), []
    trackers = open_trackers(["lines"], False, complaints.append)
    trackers.start(resolved)
    trackers.measured(Measurement(0, "private", 1, 0.25, 0.5, 3, 1.5, 0.125, 0.0625))
    result = TrialResult(0, {}, [], [SiloMeasurement(0, "private", "silo-00", 0.25, 0.5, 8)])
    results = Results()
    results.finish(result)
    trackers.finish(Outcome(resolved, results, 1.0))
    assert complaints == []
    assert json.loads(lines.read_text()) == [
        ["simulation", False],
        ["start", "small", 3, GIVEN],
        ["log", 1, {"trial-0/private/participants": 3, "trial-0/private/seconds": 1.5}],
    ]


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(lines: Path, tmp_path: Path) -> None:
    output = invoke("simulate", write(tmp_path, with_trackers("broken")), "--out", tmp_path / "run")
    said = " ".join(output.split())
    assert "tracker broken failed and is left out: ConnectionError: server is away" in said
    assert output.count("is left out") == 1
    assert (tmp_path / "run" / "summary.json").exists()
    assert not lines.exists()


@pytest.mark.usefixtures("lines")
def test_an_unknown_or_unusable_tracker_is_refused_before_work(tmp_path: Path) -> None:
    assert "did you mean 'lines'" in refused(tmp_path, "line")
    assert "cannot be made: OSError: no directory" in refused(tmp_path, "cannot")


def test_a_run_can_be_read_back_in_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    out = simulate(tmp_path, with_trackers("tensorboard"))
    (folder,) = (tmp_path / "runs" / "tensorboard").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    seen = {event.step: event.value for event in events.Scalars("trial-0/private/error")}
    metrics = load_run(out).metrics.to_pylist()
    kept = {m["round"]: m["error"] for m in metrics if (m["trial"], m["variant"]) == (0, "private")}
    assert seen == pytest.approx(kept)
    assert "trial-1/nonprivate/silo/silo-02/error" in events.Tags()["scalars"]


@pytest.mark.slow
def test_a_run_can_be_read_back_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    simulate(tmp_path, with_trackers("mlflow"))
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedsim")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("small", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "trial-0/private/error")
    assert sorted(metric.step for metric in history) == list(range(7))
    assert "trial-1/nonprivate/silo/silo-02/error" in run.data.metrics


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)
def test_a_tracker_whose_extra_is_missing_says_how_to_get_it(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'fedsim-isrl[{name}]'" in refused(tmp_path, name)


def test_a_tracker_is_told_no_hash_of_records(lines: Path) -> None:
    """It would tell whoever knows all records but one whether a guess at that one is right."""
    told: list[Any] = []

    class Told:
        def start(self, run: Any) -> None:
            told.append(run)

    data = fedsim.Arrays([[0.5], [0.1]] * 40, [0, 1] * 40)
    resolved = resolved_of(Scenario.model_validate(SMALL), None, data, {})
    Trackers({"told": Told()}, True, pytest.fail).start(resolved)
    assert told[0]["scenario"]["data"]["features"] == "<f8(80, 1)"
    assert "sha256" not in json.dumps(told)
