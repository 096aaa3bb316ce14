"""`fedsim up`: everything starts, trains and ends; nothing stays behind, however it ends."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from support.daemons import short_folder
from support.distribution import ROOT, gone
from support.flower import environment

from fedsim.cli.deploy import _run_here as run
from fedsim.common.errors import InputError
from fedsim.common.files import RECORD
from fedsim.deployment import up
from fedsim.deployment.processes import Ended, Processes
from fedsim.deployment.topology import prepare
from fedsim.deployment.up import run_all
from fedsim.report.resume import state_of
from fedsim.report.run_directory import read
from fedsim.scenario.load import load
from fedsim.scenario.resolve import resolve
from silos.vault.book import read as read_ledger

SILOS = ("silo-00", "silo-01")
TWO_SILOS = ("partition.num_partitions=2", "partition.proportions=null", "privacy.epsilon=1")
SUMS = ("privacy.mechanism=summed_gaussian", "privacy.honest_fraction=1")
PATIENCE = 300.0


@pytest.fixture
def place():
    with short_folder() as folder:
        yield folder
        assert not _left(folder), "processes are left"


def _left(folder: Path) -> list[psutil.Process]:
    """Processes that have to do with a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            about = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(folder) in each for each in about) and process.pid != psutil.Process().pid:
            found.append(process)
    return found


def _up(place: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedsim", "up", "--out", str(place / "all"), *more]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _new(place: Path, rounds: int) -> subprocess.Popen[str]:
    changes = (*TWO_SILOS, f"algorithm.num_rounds={rounds}")
    return _up(place, "breast_cancer", *(word for change in changes for word in ("--set", change)))


def _end(process: subprocess.Popen[str], code: int) -> str:
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, said
    return said


def _debited(place: Path, silo: str) -> list[int]:
    """The rounds of the one run in a silo's ledger, which is whole."""
    (run,) = read_ledger(place / "all" / silo / "state" / "ledger.sqlite").runs.values()
    return sorted(run.rounds)


def _until_round(place: Path, rounds: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    log = place / "all" / SILOS[1] / "daemon.log"
    while not log.exists() or log.read_text().count(" reply ") < rounds:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_from_a_scenario_to_a_model_two_ledgers_and_a_page(place):
    said = _end(_new(place, 3), 0)
    assert "fedsim ledger show" in said
    assert (place / "all" / "run" / "report.html").is_file()
    assert [silo.name for silo in read(place / "all" / "run").summary.privacy.silos] == list(SILOS)
    for silo in SILOS:
        assert _debited(place, silo) == [0, 1, 2]
    assert "holds another run" in _end(_new(place, 3), 2)
    assert "its run has ended" in _end(_up(place, "--resume"), 2)


@pytest.mark.slow
def test_sums_over_silos_have_a_shuffler_and_one_roster_for_all(place):
    changes = (*TWO_SILOS, "algorithm.num_rounds=8", *SUMS)
    process = _up(place, "breast_cancer", *(word for change in changes for word in ("--set", change)))
    _until_round(place, 3, process)
    process.send_signal(signal.SIGINT)
    assert "ending the round in hand" in _end(process, 130)
    assert state_of(place / "all" / "run") == "begun"
    rosters = {
        (place / "all" / party / "roster.yaml").read_text() for party in (*SILOS, "server", "shuffler")
    }
    assert len(rosters) == 1
    said = " ".join(_end(_up(place, "--resume"), 0).split())
    assert "sums over at least 2 of 2 silos alone" in said
    assert "collude" in said
    for silo in SILOS:
        assert _debited(place, silo) == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("example", ["examples/tables/heart.yaml", "scenarios/sdp_hospitals.yaml"])
def test_shipped_examples_are_deployed_as_they_are(place, example):
    process = _up(place, example)
    said = " ".join(_end(process, 0).split())
    assert "test error" in said
    folder = place / "all" / "VA-Long-Beach"
    assert yaml.safe_load((folder / "silo.yaml").read_text())["records"]["path"] == "records.csv"
    assert read_ledger(folder / "state" / "ledger.sqlite").enrolment.silo == "VA Long Beach"
    assert "VA Long Beach" in (place / "all" / "run" / "report.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_and_can_be_resumed(place):
    process = _new(place, 40)
    _until_round(place, 3, process)
    process.send_signal(signal.SIGINT)
    assert "fedsim up --resume" in _end(process, 130)
    assert not _left(place)
    assert state_of(place / "all" / "run") == "begun"
    _end(_up(place, "--resume"), 0)
    for silo in SILOS:
        assert _debited(place, silo) == list(range(40))


@pytest.mark.slow
def test_when_a_daemon_dies_all_end_and_it_is_named(place):
    process = _new(place, 40)
    _until_round(place, 2, process)
    log = str(place / "all" / SILOS[0] / "daemon.log")
    (daemon,) = [each for each in _left(place) if log in [file.path for file in each.open_files()]]
    daemon.kill()
    said = " ".join(_end(process, 1).split())
    assert f"the daemon of {SILOS[0]} ended (exit code -9)" in said
    assert "fedsim up --resume" in said


@pytest.mark.parametrize(
    ("scenario", "out", "resume", "said"),
    [
        (None, "new", False, "SCENARIO: None: is required"),
        (None, "new", True, "a directory that `fedsim up` has made"),
        (None, None, True, "--out DIR alone"),
        ("breast_cancer", "new", True, "--out DIR alone"),
        ("breast_cancer", ".", False, "holds another run"),
        ("digits_sweep", "new", False, "scenario.sweep"),
    ],
)
def test_what_a_person_can_mend_is_said_before_anything_starts(place, scenario, out, resume, said):
    (place / "something").touch()
    given = None if scenario is None else load(Path(scenario))
    with pytest.raises(InputError, match=re.escape(said)):
        run(given, [], None if out is None else place / out, 0, resume)
    assert not (place / "new").exists()


@pytest.mark.slow
def test_a_silo_that_cannot_enrol_is_named_with_its_reason(place):
    topology = prepare(resolve(load(Path("breast_cancer"), TWO_SILOS)), place / "all")
    (topology.silo(SILOS[1]) / "records.npz").unlink()
    with pytest.raises(Ended, match=rf"(?s)the daemon of {SILOS[1]} ended \(exit code 2\).*no such file"):
        run_all(topology, port=0, resume=False, tell=lambda line: None)


@pytest.mark.parametrize("admitted", [True, False])
def test_what_no_silo_has_admitted_begins_anew(place, admitted, monkeypatch):
    """As after an interrupted enrolment: there is no record that a run could go on with."""
    topology = prepare(resolve(load(Path("breast_cancer"), TWO_SILOS)), place / "all")
    if admitted:
        topology.run.mkdir()
        (topology.run / RECORD).touch()
    monkeypatch.setattr(up.superlink, "start", lambda *given: None)
    for name in ("_start_daemons", "_wait", "enroll", "_start_nodes", "load_federation"):
        monkeypatch.setattr(up, name, lambda *given: "127.0.0.1:1")
    monkeypatch.setattr(up, "node_keys", lambda federation: {})
    monkeypatch.setattr(up, "submit", lambda control, job, *more: job.resume)
    assert run_all(topology, port=1, resume=True, tell=lambda line: None) is admitted


# Nothing that was started outlives its block, and what ended says why.

SLEEP = "import time; time.sleep(600)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
other = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, other.pid, flush=True)
child.wait()
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def _said(log: Path) -> str:
    until = time.monotonic() + 60
    while not (text := log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    return text


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_children_and_theirs_end_with_the_block(error, tmp_path):
    log = tmp_path / "log"
    try:
        with Processes() as processes:
            pids = [
                processes.start("a family", _python(FAMILY), log).process.pid,
                *map(int, _said(log).split()),
            ]
            assert not any(map(gone, pids))
            if error:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert all(map(gone, pids))


def test_what_a_killed_child_leaves_behind_ends_too(tmp_path):
    """Also what has a session of its own, as the processes have that a SuperLink starts."""
    log, other = tmp_path / "log", tmp_path / "other"
    with Processes() as bystanders:
        bystander = bystanders.start("another", _python("print('here', flush=True)\n" + SLEEP), other)
        _said(other)
        with Processes() as processes:
            leader = processes.start("a family", _python(FAMILY), log).process
            orphans = [int(pid) for pid in _said(log).split()]
            leader.kill()
            leader.wait()
            assert not any(map(gone, orphans))
        assert all(map(gone, orphans))
        assert bystander.process.poll() is None


def test_a_process_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.deployment.processes.PATIENCE", 0.2)
    with Processes() as processes:
        child = processes.start("a deaf one", _python(DEAF + SLEEP), tmp_path / "log")
        _said(child.log)
    assert gone(child.process.pid)


def test_who_ended_is_named_with_the_end_of_its_log(tmp_path):
    with Processes() as processes:
        child = processes.start(
            "the daemon of silo-1", _python("print('no disk left'); raise SystemExit(3)"), tmp_path / "log"
        )
        child.process.wait()
        with pytest.raises(Ended, match=r"(?s)the daemon of silo-1 ended \(exit code 3\).*no disk left"):
            processes.check()
