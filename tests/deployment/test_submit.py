"""An interrupted run ends the round in hand, and is reported as what became of it."""

import signal
from contextlib import closing

import pytest

from fedsim.common.chain import RUN
from fedsim.common.errors import CAN_BEGIN, CAN_RESUME, InputError, Refused
from fedsim.common.store import Store
from fedsim.deployment.flower import submit as module
from fedsim.deployment.flower.control import Away, Status
from fedsim.deployment.flower.submit import Job, Line, kept, of_words, submit, write
from fedsim.deployment.processes import Ended

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


SAID = "ServerApp failed with exception: "
SHORT = f"{SAID}round 3: 1 of 2 silos answered, 2 are needed (south: no reply within 60 s); {CAN_RESUME}"
REFUSED = f"{SAID}1 of 2 silos answered, 2 are needed (south: the silo's policy does not allow it)"
BY_HAND = f"{SAID}stopped by its operator after round 2 of 6"
KILLED = "No heartbeat received from the task"
DONE = Status("completed", "")


class Attempts:
    """Each has its outcome: a status, or what is raised."""

    def __init__(self, *outcomes):
        self.left, self.jobs = list(outcomes), []

    def __call__(self, job):
        self.jobs.append(job)
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


AWAY = Away("superlink", "h:1", "a SuperLink that answers")
LATE = Refused("waiting for south to join h:1: not there after 600 s")


@pytest.mark.parametrize(
    ("first", "keep"),
    [
        (Status("failed", KILLED, away=True), False),
        *(
            (first, True)
            for first in (
                Status("failed", KILLED),
                Status("failed", SHORT),
                Status("failed", f"{SAID}0 of 2 silos answered, 2 are needed; {CAN_BEGIN}"),
                Status("away", "the SuperLink is away"),
                AWAY,
                LATE,
            )
        ),
    ],
)
def test_what_heals_is_gone_on_with(first, keep, job, clock):
    attempts, told = Attempts(first, first, DONE), []
    assert kept(attempts, job, lambda line: told.append(line.text), keep) == DONE
    assert [each.resume for each in attempts.jobs] == [False, "again", "again"]
    assert all(text.endswith("going on in 4 s") for text in told[:1])
    assert told[1].endswith("going on in 8 s")
    assert clock[0] == 12


def test_an_earlier_process_of_the_run_is_waited_for(job, clock, tmp_path):
    """It looks for its SuperLink for a while before it ends."""
    Store.make(tmp_path / "record", RUN, "run", "{}")
    with closing(Store.hold(tmp_path / "record", RUN)), pytest.raises(BlockingIOError) as held:
        Store.hold(tmp_path / "record", RUN)
    busy = Status("failed", f"{SAID}record: 'run/record.sqlite': {held.value.strerror}")
    attempts = Attempts(Status("failed", KILLED, away=True), busy, busy, DONE)
    assert kept(attempts, job, lambda line: None, keep=False) == DONE
    assert kept(Attempts(busy), job, lambda line: None, keep=False) == busy


@pytest.mark.parametrize(
    ("first", "keep"),
    [
        (DONE, True),
        (Status("failed", REFUSED), True),
        (Status("failed", BY_HAND), True),
        (Status("stopped", ""), True),
        (Status("failed", KILLED), False),
        (Status("failed", SHORT, away=True), False),
        (Status("away", "the SuperLink is away"), False),
    ],
)
def test_what_does_not_heal_ends_the_run(first, keep, job, clock):
    attempts = Attempts(first)
    assert kept(attempts, job, lambda line: None, keep) == first
    assert clock[0] == 0
    assert first.goes_on is (first.details not in (REFUSED, "") or first.word == "stopped")


@pytest.mark.parametrize("error", [AWAY, LATE])
def test_what_is_not_kept_up_is_refused_as_it_is(error, job, clock):
    with pytest.raises(type(error)):
        kept(Attempts(error), job, lambda line: None, keep=False)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_superlink_of_its_own_that_dies_is_begun_anew_once_the_run_has_begun(
    has_begun, job, clock, monkeypatch
):
    """Before that it has died of what it was given, and would again."""
    monkeypatch.setattr(module, "state_of", lambda out: "begun" if has_begun else "none")
    attempts = Attempts(Ended("the SuperLink ended (exit code -9)"), DONE)
    if has_begun:
        assert kept(attempts, job, lambda line: None, keep=True) == DONE
    else:
        with pytest.raises(Ended):
            kept(attempts, job, lambda line: None, keep=True)


class Restarted(OneRun):
    """A SuperLink that is away from the second look on, for so many seconds; then it says how the run is."""

    def __init__(self, job, clock, away, after):
        super().__init__(job, interrupts=())
        self.clock, self.away, self.after, self.since = clock, away, after, None

    def status(self, run):
        self.looks += 1
        if self.looks == 1:
            self.since = self.clock[0]
            return RUNNING
        if self.clock[0] < self.since + self.away:
            raise AWAY
        if isinstance(self.after, Exception):
            raise self.after
        return self.after


@pytest.mark.parametrize(
    ("away", "after", "expected", "lines"),
    [
        (5.0, DONE, Status("completed", "", away=True), 0),
        (300.0, DONE, Status("completed", "", away=True), 1),
        (300.0, Status("failed", KILLED), Status("failed", KILLED, away=True), 1),
        (700.0, DONE, Status("away", f"the SuperLink is away ({AWAY})"), 1),
    ],
)
def test_a_superlink_that_is_away_is_waited_for_as_long_as_patience_says(
    away, after, expected, lines, job, clock, monkeypatch
):
    monkeypatch.setattr(module, "LOOK", 1.0)
    told = []
    control = Restarted(job, clock, away, after)
    assert submit(control, job, {}, 600.0, lambda line: told.append(line.text)) == expected
    assert [text for text in told if "away" in text] == [
        "the SuperLink is away; it is waited for, 0:10:00 at most"
    ] * lines


def test_a_superlink_that_has_forgotten_the_run_has_cut_it_off(job, clock, monkeypatch):
    """As one without a database that was started anew."""
    monkeypatch.setattr(module, "LOOK", 1.0)
    forgot = InputError("superlink", "h:1", "a SuperLink of flwr 1 (it answers 404)")
    status = submit(Restarted(job, clock, 5.0, forgot), job, {}, 600.0, lambda line: None)
    assert (status.cut_off, status.away) == (True, True)


def test_a_superlink_that_is_started_anew_while_nodes_are_waited_for(job, clock):
    class Shaky(Nodes):
        def nodes(self):
            if self.clock[0] < 1:
                raise AWAY
            return super().nodes()

    module._wait(Shaky(job, clock), {"north": b"a"}, lambda line: None, 600.0, 15.0, 1)
    assert clock[0] > 2
