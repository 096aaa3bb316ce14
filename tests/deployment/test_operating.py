"""`fedsim status`, `runs`, `stop` and `down`: a real deployment is seen, stopped, killed and cleared away."""

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from support.daemons import short_folder
from support.distribution import ROOT, gone
from support.flower import environment, until
from support.scenarios import invoke, refusal

from fedsim.deployment.flower.control import Node, Status, Submitted
from fedsim.deployment.flower.submit import Reader
from fedsim.deployment.processes import marked
from fedsim.deployment.running import FILE, Running, recorded, running
from fedsim.deployment.standing import Place, job_of, lifetimes, run_tree, standing
from fedsim.deployment.topology import prepare
from fedsim.report.run_directory import RECEIPTS
from fedsim.scenario.load import load
from fedsim.scenario.resolve import resolve
from fedsim.wire.logs import VARIABLE
from silos.vault.book import read as read_ledger

TWO_SILOS = ("partition.num_partitions=2", "partition.proportions=null", "privacy.epsilon=1")
ROUNDS = 60
PATIENCE = 300.0


def _up(place: Path, *words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedsim", "up", *map(str, words), "--out", str(place)]
    with place.with_name("said").open("wb") as said:
        env = environment() | {VARIABLE: "{format: json}"}
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said)


def _until_round(place: Path, rounds: int) -> int:
    """Until so many have ended; how many that are."""
    seen = [0]

    def there() -> bool:
        seen.extend(line.rounds for line in Reader(place / "run.progress").new())
        return max(seen) >= rounds

    until(there, PATIENCE)
    return max(seen)


@pytest.mark.slow
def test_an_operator_sees_stops_clears_away_and_resumes():
    with short_folder() as folder:
        place = folder / "all"
        first = _up(
            place,
            "breast_cancer",
            *(f"--set={each}" for each in (*TWO_SILOS, f"algorithm.num_rounds={ROUNDS}")),
        )
        _until_round(place, 3)
        said = json.loads(invoke("status", place, "--json"))
        assert said["superlink"]["answers"]
        assert {silo["node"] for silo in said["silos"].values()} == {"online"}
        seen = [datetime.fromisoformat(silo["contact"]) for silo in said["silos"].values()]
        assert all(datetime.now(UTC) - each < timedelta(minutes=2) for each in seen)
        assert {silo["lifetime"] for silo in said["silos"].values()} == {None}
        assert max(map(len, invoke("status", place).splitlines())) <= 80
        (run,) = json.loads(invoke("runs", place, "--json"))["runs"]
        assert run["state"] == "running"
        assert run["rounds"] == ROUNDS
        table = invoke("runs", place)
        assert run["run"] in table
        assert max(map(len, table.splitlines())) <= 80
        assert "all of it runs already" in refusal("up", "--resume", "--out", place)

        said = invoke("stop", place)
        assert "stopped by its operator after round" in said
        assert "fedsim up --resume" in said
        assert first.wait(PATIENCE) == 1
        assert running(place) is None
        assert "its rounds so far are kept" in invoke("status", place)
        ended = int(said.partition("after round ")[2].split()[0])

        second = _up(place, "--resume")
        ended = _until_round(place, ended + 3)
        there = running(place)
        family = [each.pid for each in marked(there.mark)]
        (watch,) = [each for each in psutil.Process(second.pid).children() if there.mark in each.cmdline()]
        watch.kill()
        second.kill()
        second.wait()
        assert not all(map(gone, family))
        assert "Ended" in invoke("down", place)
        assert all(map(gone, family))
        assert "Nothing of `fedsim up` runs" in invoke("down", place)

        (place / "run.progress").unlink()  # of the one that was killed
        third = _up(place, "--resume")
        _until_round(place, ended + 3)
        assert "fedsim up --resume" in invoke("down", place)
        assert third.wait(PATIENCE) == 130

        assert _up(place, "--resume").wait(PATIENCE) == 0
        said = json.loads(invoke("status", place, "--json"))
        for name, silo in said["silos"].items():
            account = read_ledger(place / name / "state" / "ledger.sqlite").account
            assert silo["lifetime"]["caps"] == account.caps.total.tree()
            assert silo["lifetime"]["charged"] == account.charged.tree()
        assert "has ended" in invoke("status", place)
        for log in (place / "run.log", *(place / name / "state" / "log" for name in said["silos"])):
            lines = [json.loads(line)["message"] for line in log.read_text().splitlines()]
            assert any("round" in line for line in lines)


SLEEP = "import time; time.sleep(600)"
STARTER = f"""
import sys, time
from pathlib import Path
from fedsim.deployment.processes import Processes
child = [sys.executable, "-c", '''
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True).pid, flush=True)
time.sleep(600)
''']
with Processes() as processes:
    print(processes.start("one", child, Path(sys.argv[1])).process.pid, processes.mark, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_process_started_ends_when_it_is_killed(number, tmp_path):
    """Also what has a session of its own, as the processes have that a SuperLink starts."""
    log = tmp_path / "log"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(log)], stdout=subprocess.PIPE, text=True)
    with starter:
        pid, mark = starter.stdout.readline().split()
        until(lambda: log.read_text().endswith("\n"))
        pids = [int(pid), int(log.read_text())]
        assert not any(map(gone, pids))
        starter.send_signal(number)
        starter.wait()
        until(lambda: all(map(gone, pids)))
        until(lambda: next(marked(mark), None) is None)


@pytest.fixture
def place(tmp_path):
    return prepare(resolve(load(Path("breast_cancer"), TWO_SILOS)), tmp_path / "all")


def test_bad_places_are_one_line(place, tmp_path):
    for command in ("status", "runs", "stop", "down"):
        assert "a directory that `fedsim up` has made" in refusal(command, tmp_path)
    for command in ("runs", "stop"):
        assert "nothing of `fedsim up` runs there" in refusal(command, place.directory)
    assert "federation" in refusal("status", tmp_path / "none.yaml")
    (place.directory / FILE).write_text("{}")
    assert "a file that `fedsim up` has written" in refusal("down", place.directory)


def test_a_superlink_that_is_away_is_exit_code_1(place):
    said = invoke("status", place.federation, "--superlink", "127.0.0.1:1", code=1)
    assert "a SuperLink that answers" in said
    assert "not known" in said


NONE = "/0123456789abcdef"  # a mark that no process bears


@pytest.mark.parametrize(
    "change",
    [
        {"mark": ""},
        {"mark": "/"},
        {"mark": f"{NONE}\n"},
        {"mark": 7},
        {"pid": "1"},
        {"pid": 0},
        {"began": "now"},
    ],
)
def test_a_file_that_no_up_has_written_ends_no_process(place, change, monkeypatch):
    monkeypatch.setattr(Running, "end", lambda self: pytest.fail("would end processes"))
    with recorded(place.directory, f"{NONE}{NONE}", "127.0.0.1:1"):
        file = place.directory / FILE
        told = json.loads(file.read_text())
        assert running(place.directory) == Running(**told)
        file.write_text(json.dumps(told | change))
        assert str(file) in refusal("down", place.directory)


def test_a_process_with_a_number_that_was_given_again_is_no_up(tmp_path):
    with recorded(tmp_path, NONE, "127.0.0.1:1"):
        found = running(tmp_path)
        assert found.process.pid == psutil.Process().pid
        assert Running(found.pid, found.began - 1, found.mark, found.superlink).process is None
    assert running(tmp_path) is None


NOTHING = dict.fromkeys(("mu_sq", "epsilon", "delta", "distance"), 0.0)


def _receipt(folder: Path, run: str, closed: int, key: str = "a", **changes: object) -> Path:
    said = {"run": run, "closed": closed, "public_key": key, "charged": {**NOTHING, "mu_sq": 0.25}}
    said |= {"lifetime": {"total": {**NOTHING, "mu_sq": 1.0}}} | changes
    (folder / RECEIPTS).mkdir(parents=True)
    (folder / RECEIPTS / "north.json").write_text(json.dumps(said))
    return folder


def test_receipts_of_one_lifetime_add_up_each_once(tmp_path):
    """What is none counts for nothing, whatever a silo has sent."""
    folders = [
        _receipt(tmp_path / "1", "r1", 1),
        _receipt(tmp_path / "2", "r2", 3),
        _receipt(tmp_path / "same", "r2", 3),
        _receipt(tmp_path / "before", "r0", 0, key="an earlier silo's"),
        _receipt(tmp_path / "a word", "r3", 4, charged={**NOTHING, "mu_sq": "little"}),
        _receipt(tmp_path / "less", "r4", 4, charged={**NOTHING, "mu_sq": -1}),
        _receipt(tmp_path / "infinite", "r5", 4, charged={**NOTHING, "mu_sq": float("inf")}),
        _receipt(tmp_path / "no caps", "r6", 4, lifetime=[]),
    ]
    found = lifetimes([*folders, tmp_path / "no run"], ["north", "south"])
    assert found["south"] is None
    assert found["north"]["runs"] == 2
    assert found["north"]["charged"] == {**NOTHING, "mu_sq": 0.5}
    assert found["north"]["caps"] == {**NOTHING, "mu_sq": 1.0}


def test_the_larger_of_a_silos_two_parts_counts(tmp_path):
    folder = _receipt(tmp_path / "1", "r1", 1)
    said = json.loads((folder / RECEIPTS / "north.json").read_text())
    said |= {"run": "r2", "part": "holdout", "charged": {**NOTHING, "mu_sq": 0.5}}
    (folder / RECEIPTS / "evaluation").mkdir()
    (folder / RECEIPTS / "evaluation" / "north.json").write_text(json.dumps(said))
    assert lifetimes([folder], ["north"])["north"]["charged"] == {**NOTHING, "mu_sq": 0.5}


def test_a_run_of_another_program_is_shown_without_rounds():
    run = Submitted(7, Status("running", ""), None, None, {"model": "theirs"})
    assert job_of(run) is None
    assert (run_tree(run)["round"], run_tree(run)["rounds"]) == (None, None)


STRANGERS = {
    "federation": "/etc/hosts",
    "out": "/srv/run",
    "scenario": "theirs",
    "overrides": "[]",
    "progress": "/srv/run.progress",
}


@pytest.mark.parametrize(
    "change",
    [
        *({"out": out} for out in ("", "run", "/", "/a/\0", "/" + "a" * 250)),
        *({"overrides": text} for text in ("[" * 100_000, "7", "[1]", "no")),
        {"federation": "/\0"},
    ],
)
def test_settings_that_fedsim_does_not_give_are_another_programs(change):
    assert job_of(Submitted(7, Status("running", ""), None, None, STRANGERS)) is not None
    assert job_of(Submitted(7, Status("running", ""), None, None, STRANGERS | change)) is None


def test_progress_that_is_none_is_passed_over(tmp_path):
    file = tmp_path / "run.progress"
    good = '{"rounds": 2, "of": 4, "text": "", "words": false}'
    file.write_bytes(
        b"\n".join([b"\xff", b"{}", b"[]", b"[" * 100_000, good.encode(), b'{"rounds": "x"}', b""])
    )
    run = Submitted(7, Status("running", ""), None, None, STRANGERS | {"out": str(tmp_path / "run")})
    assert (run_tree(run)["round"], run_tree(run)["rounds"]) == (2, 4)
    assert Reader(tmp_path).new() == []


@pytest.mark.parametrize("own", [True, False])
def test_stop_touches_files_of_its_own_federations_run_alone(own, place, monkeypatch):
    """Any client may start a run at a SuperLink, with any settings."""

    class Link(_Link):
        address, asked = "127.0.0.1:1", 0

        def runs(self):
            settings = STRANGERS | {"out": str(out)} | ({"federation": str(place.federation)} if own else {})
            return [Submitted(7, Status("running", ""), None, None, settings)]

        def status(self, run):
            touched.append(stop.exists())
            return Status("stopped", "")

    out, touched = place.directory / "other", []
    stop = out.with_name("other.stop")
    out.with_name("other.progress").write_text('{"rounds": 2, "of": 4, "text": "", "words": false}\n')
    if not own:
        stop.touch()
    monkeypatch.setattr(Place, "control", lambda self: Link())
    said = invoke("stop", place.federation)
    assert "Run 7: stopped" in said
    assert ("--resume" in said) is own
    assert touched == [True, False] if own else stop.exists()


class _Link:
    """In place of a line to a SuperLink that has nothing but one node of another federation."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def seen(self):
        return {b"another": Node("online", datetime.now(UTC))}

    def runs(self):
        return []


def test_a_node_that_is_not_let_in_has_no_state(place, monkeypatch):
    monkeypatch.setattr(Place, "control", lambda self: _Link())
    said = standing(Place.of(place.federation), [])
    assert said["superlink"]["answers"]
    assert {silo["node"] for silo in said["silos"].values()} == {None}


def test_down_waits_for_an_up_that_ends_its_round(tmp_path):
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(3)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{script}; print('', flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    with process:
        process.stdout.readline()
        began = psutil.Process(process.pid).create_time()
        start = time.monotonic()
        assert Running(process.pid, began, "/none", "").end() == 1
        assert time.monotonic() - start > 0.9
        assert process.wait() == 3
