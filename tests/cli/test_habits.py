"""What people expect of any command line: -h, -q, --json, completion, exit codes, pipes, disks, the clock."""

import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.full_disk import full_disk
from support.scenarios import BASE, run
from typer.main import get_command

from fedsim.api.run import load_run
from fedsim.cli.app import COMMANDS, EXIT_CODES, app, scenarios
from fedsim.cli.main import _Stream
from fedsim.common.files import taken
from fedsim.common.serialise import to_yaml
from fedsim.report.outcome import Results
from fedsim.simulation import trial

SETS = ("algorithm.num_rounds=2", "trials=2", "report.baselines=false", "runtime.name=inprocess")
SMALL = [part for each in SETS for part in ("--set", each)]
QUICK = ["simulate", "quickstart", *SMALL]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep_file(folder: Path) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(to_yaml(BASE | {"trials": 1, "sweep": {"grid": {"privacy.epsilon": [1.0, 2.0]}}}))
    return file


def test_h_is_help_everywhere() -> None:
    group: Any = get_command(app)
    assert group.list_commands(None) == list(COMMANDS)
    assert set(group.commands) == set(COMMANDS)
    names = [[name] for name in group.commands]
    names += [["ledger", name] for name in group.commands["ledger"].commands]
    for name in [[], *names]:
        shown = run(*name, "-h")
        assert shown.exit_code == 0
        assert "Usage" in shown.output
        assert re.search(r"--help\s+-h", shown.output)


def test_quiet_prints_nothing_and_writes_the_run(place: Path) -> None:
    done = run(*QUICK, "-q", "--out", "run")
    assert (done.exit_code, done.output, done.stderr) == (0, "", "")
    assert load_run(place / "run").summary.trials.finished == 2
    swept = run("sweep", sweep_file(place), "--quiet", "--out", "swept")
    assert (swept.exit_code, swept.output, swept.stderr) == (0, "", "")
    assert (place / "swept" / "summary.json").exists()


def test_quiet_says_what_went_wrong() -> None:
    done = run("simulate", "quickstart", "-q", "--set", "trials=0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "scenario.trials" in done.stderr


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_json_is_the_summary_alone_and_progress_is_on_stderr(command: str, place: Path) -> None:
    given = QUICK if command == "simulate" else ["sweep", sweep_file(place)]
    done = run(*given, "--json", "--out", "made")
    tree = json.loads(done.stdout)
    assert tree.pop("directory") == "made"
    assert tree == json.loads((place / "made" / "summary.json").read_text())
    assert "/" in done.stderr
    assert done.exit_code == 0
    silent = run(*given, "--json", "-q", "--out", "again")
    assert json.loads(silent.stdout)["scenario"] == tree["scenario"]
    assert silent.stderr == ""


def test_a_shell_completes_commands_and_scenarios(place: Path) -> None:
    (place / "quiz.yaml").touch()
    (place / "qux").mkdir()
    (place / "qux" / "own.yaml").touch()
    (place / "notes.txt").touch()
    assert scenarios("qu") == ["quickstart", "quiz.yaml", "qux/"]
    assert scenarios("qux/") == ["qux/own.yaml"]
    assert scenarios("/no/such/") == []
    for words, expected in (("fedsim simulate quick", "quickstart"), ("fedsim sim", "simulate")):
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        asked["_FEDSIM_COMPLETE"] = "complete_bash"
        assert run(prog_name="fedsim", env=asked).output.split() == [expected]
    assert "--install-completion" in run("--help").output


def interrupt_after_one_trial(resolved: Any, results: Results, observe: Any) -> None:
    real = Results.finish

    def finish(self: Results, result: Any) -> None:
        real(self, result)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Results, "finish", finish)
        trial.execute(resolved, results, observe)


def test_every_documented_exit_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*QUICK, "--out", "run").exit_code == 0
    assert run(*QUICK, "--out", "run").exit_code == 2
    with full_disk(17_000):  # room for what a run begins with, and for no trial
        assert run(*QUICK, "--out", "full").exit_code == 1
    with monkeypatch.context() as patch:
        patch.setattr("fedsim.api.simulate._execute", interrupt_after_one_trial)
        stopped = run(*QUICK, "--out", "stopped")
    assert stopped.exit_code == 130
    assert "1 of 2 trials" in stopped.output
    assert "fedsim simulate --resume stopped" in stopped.output
    assert run("simulate", "--resume", "stopped").exit_code == 0
    assert load_run(place / "stopped").summary.trials.finished == 2
    said = " ".join(run("--help").output.replace("│", " ").split())
    assert " ".join(EXIT_CODES.split()) in said
    page = (Path(__file__).parents[2] / "docs" / "simulating.md").read_text(encoding="utf-8")
    for code, what in ((0, "done"), (1, "incomplete"), (2, "refused"), (130, "interrupted")):
        assert f"{code} {what}" in EXIT_CODES
        assert f"| {code} | {what}" in page


def test_resuming_what_cannot_go_on_is_one_line(place: Path) -> None:
    for given, expected in (
        (["--resume", "none"], "holds no run that can go on"),
        ([], "name one, or --resume RUN"),
        (["quickstart", "--resume", "none", "--out", "x"], "leave --out out"),
        (["quickstart", "--resume", "none"], "holds no run that can go on"),
    ):
        done = run("simulate", *given)
        assert done.exit_code == 2
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(place.iterdir()) == []


class Stopped(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2030, 1, 2, 3, 4, 5, tzinfo=tz)


def test_two_runs_of_the_same_second_both_live(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.cli.output.datetime", Stopped)
    began, within = list[Any](), list[int]()

    def second(resolved: Any, results: Results, observe: Any) -> None:
        began.append(resolved)
        if len(began) == 1:
            within.append(run(*QUICK, "-q").exit_code)
        trial.execute(resolved, results, observe)

    monkeypatch.setattr("fedsim.api.simulate._execute", second)
    assert [run(*QUICK, "-q").exit_code, *within] == [0, 0]
    names = ["quickstart-20300102-030405", "quickstart-20300102-030405-2"]
    assert sorted(file.name for file in (place / "runs").iterdir()) == names
    for name in names:
        assert load_run(place / "runs" / name).summary.trials.finished == 2


def test_no_two_processes_take_one_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: taken(tmp_path / "a" / "run"), range(8)))
    assert sorted(path.name for path in made) == sorted(["run", *(f"run-{k}" for k in range(2, 9))])


def test_a_refused_run_takes_no_directory(place: Path) -> None:
    refused = ["--set", "privacy.epsilon=1e-7", "--set", "privacy.delta=1e-12"]
    assert run(*QUICK, *refused).exit_code == 2
    assert list((place / "runs").iterdir()) == []


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_a_full_disk_is_one_line(command: str, place: Path) -> None:
    given = QUICK if command == "simulate" else ["sweep", sweep_file(place)]
    with full_disk(60):
        done = run(*given, "-q", "--out", "made")
    assert done.exit_code == 2  # nothing could be begun
    assert "cannot be written (File too large)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert run(*given, "-q", "--out", "made").exit_code == 0  # with room again


def test_a_stream_outlives_its_reader(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    stream = _Stream(io.TextIOWrapper(os.fdopen(writer, "wb"), line_buffering=True))
    stream.write("read\n")
    os.close(reader)
    for _ in range(3):
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
    stream.close()


@pytest.mark.slow
def test_a_pipe_that_closes_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedsim", *QUICK, "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")
    assert load_run(tmp_path / "run").summary.trials.finished == 2
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_folder_with_modules_of_our_names_does_no_harm(tmp_path: Path) -> None:
    """In the driver of `python -m` or a notebook, and in the processes of Ray."""
    for name in ("server", "silos", "data"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another module ran')\n")
    given = ["quickstart", "--set", "trials=1", "--set", "algorithm.num_rounds=2", "--runtime", "ray"]
    command = [sys.executable, "-m", "fedsim", "simulate", *given, "--out", "run", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_run(tmp_path / "run").summary.trials.finished == 1
