"""An interrupted run ends the round in hand, and is reported as what became of it."""

import signal

import pytest

from fedsim.common.errors import Refused
from fedsim.deployment.flower import submit as module
from fedsim.deployment.flower.control import Status
from fedsim.deployment.flower.submit import Job, Line, of_words, submit, write

RUNNING, STOPPED = Status("running", ""), Status("failed", "stopped by its operator")


class OneRun:
    """In place of a SuperLink's control: Ctrl-C comes at the second look; the run ends when asked to."""

    def __init__(self, job, ends=STOPPED, interrupts=(2,)):
        self.job, self.ends, self.interrupts = job, ends, interrupts
        self.looks, self.stops, self.begun = 0, 0, [Line(0, 6, "round 0 of 6", False)]
        self.address = "stand-in"

    def start(self, settings):
        for line in (of_words("checkpoint"), *self.begun):
            write(self.job.progress, line)
        return 1

    def nodes(self):
        return {}

    def status(self, run):
        self.looks += 1
        if self.looks in self.interrupts:
            raise KeyboardInterrupt
        return self.ends if self.job.stop.exists() else RUNNING

    def stop(self, run):
        self.stops += 1


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(module, "enroll", lambda control, keys: None)
    return Job("breast_cancer", (), tmp_path / "federation.yaml", tmp_path / "run", False)


def _tell(line):
    raise BrokenPipeError if "round in hand" in line.text else OSError(5, "no terminal")


def _no_file(job):
    return not job.progress.exists() and not job.stop.exists()


def test_the_run_is_asked_to_end_its_round_and_then_stopped(job):
    control, told = OneRun(job), []
    with pytest.raises(KeyboardInterrupt):
        submit(control, job, {}, 1.0, lambda line: told.append(line.text))
    assert control.looks == 3
    assert control.stops == 1
    assert any("ending the round in hand" in text for text in told)
    assert _no_file(job)


def test_a_run_that_completes_meanwhile_has_completed(job):
    control = OneRun(job, Status("completed", ""))
    assert submit(control, job, {}, 1.0, lambda line: None).word == "completed"
    assert control.stops == 0
    assert _no_file(job)


def test_a_second_interrupt_ends_it_at_once(job):
    control = OneRun(job, RUNNING, interrupts=(2, 4))
    with pytest.raises(KeyboardInterrupt):
        submit(control, job, {}, 1.0, lambda line: None)
    assert (control.looks, control.stops) == (4, 1)
    assert _no_file(job)


def test_a_round_longer_than_the_grace_is_cut_off(job, monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.05)
    control = OneRun(job, RUNNING)
    with pytest.raises(KeyboardInterrupt):
        submit(control, job, {}, 1.0, lambda line: None)
    assert control.stops == 1
    assert _no_file(job)


def test_a_terminal_that_has_gone_does_not_cut_the_round_off(job):
    control = OneRun(job, interrupts=(1,))
    handler = signal.getsignal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        submit(control, job, {}, 1.0, _tell)
    assert control.looks == 2
    assert signal.getsignal(signal.SIGHUP) is handler


@pytest.mark.parametrize("change", [{"begun": []}, {"start": lambda settings: 1}], ids=["waits", "elsewhere"])
def test_a_run_that_waits_for_operators_or_is_elsewhere_is_stopped_at_once(job, change):
    control = OneRun(job, RUNNING)
    vars(control).update(change)
    with pytest.raises(KeyboardInterrupt):
        submit(control, job, {}, 1.0, lambda line: None)
    assert (control.looks, control.stops) == (2, 1)


class Nodes(OneRun):
    """Two nodes, of which one is never there; time passes between two looks."""

    def __init__(self, job, clock):
        super().__init__(job, ends=Status("completed", ""), interrupts=())
        self.clock = clock
        job.stop.touch()

    def nodes(self):
        return {b"a": "online"} if self.clock[0] > 2 else {}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


KEYS = {"north": b"a", "south": b"b"}


def test_a_node_that_is_never_there_is_waited_for_until_the_deadline(job, clock):
    told = []
    module._wait(Nodes(job, clock), KEYS, lambda line: told.append(line.text), 600.0, 15.0, 1)
    assert told == ["waiting for south to join stand-in"]
    assert 15 < clock[0] < 16


def test_too_few_nodes_end_a_run_after_patience(job, clock):
    with pytest.raises(Refused, match="south"):
        module._wait(Nodes(job, clock), KEYS, lambda line: None, 60.0, 15.0, 2)
    assert 60 < clock[0] < 61


def test_nothing_is_said_of_nodes_that_are_on_their_way(job, clock):
    told = []
    module._wait(
        Nodes(job, clock), {"north": b"a"}, lambda line: told.append(line.text), 600.0, float("inf"), 1
    )
    assert told == []
