"""A deployed run as its operator sees it: let the silos' nodes in, wait for them, start the run, follow it.

The run is another process. It appends lines to a progress file, which the operator's process reads.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, TypeAdapter
from pydantic_core import from_json

from fedsim.common.errors import InputError, Refused
from fedsim.deployment.flower.control import Away, Config, Control, Status, enroll
from fedsim.deployment.history import Step
from fedsim.deployment.processes import Ended
from fedsim.report.outcome import metric_text
from fedsim.report.resume import state_of


@dataclass(frozen=True)
class Line:
    """What the caller is told: after a round, or at any time in words."""

    rounds: int  # that have ended
    of: int  # all rounds; 0 before they are known
    text: str  # what to show beside them
    words: bool  # whether it is to be shown as a line of its own


_LINE = TypeAdapter(Line)


def of_step(step: Step) -> Line:
    """A round in one line: its silos, who was left out, and the metric where it was measured."""
    told = f"round {step.rounds} of {step.of}: {step.answered} silos"
    if step.left_out:
        told += f" (without {', '.join(sorted(step.left_out))})"
    if step.measurement is not None:
        told += f", {metric_text(step.measurement, step.metric)}"
    return Line(step.rounds, step.of, told, words=False)


def of_words(words: str) -> Line:
    """A line in words."""
    return Line(0, 0, words, words=True)


def write(path: Path, line: Line) -> None:
    """Add a line to a progress file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


class Reader:
    """Reads on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[Line]:
        """Whole lines added since the last call, but for what is none; none while there is no such file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except (OSError, ValueError):
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = []
        for each in whole.splitlines():
            with suppress(ValueError):
                lines.append(_LINE.validate_json(each))
        return lines


GRACE = 30.0
"""Seconds that an interrupted run has to end the round in hand; then it is stopped within the round."""
LOOK = 1.0  # seconds between two looks at the run; each costs the SuperLink 10 ms
ON_THEIR_WAY = 5.0  # seconds before it is said that nodes are missing
AWAY = 10.0  # seconds that a SuperLink is away before it is said, or does not know a run before it is lost
PAUSE, LONGEST_PAUSE = 4.0, 120.0  # seconds before a run is submitted again
SLOW = 8.0  # seconds before it is said that a run has not begun
NEVER = 120.0  # seconds that a run may take to begin

Tell = Callable[[Line], None]


def _named(path: Path) -> Path:
    if not (path.is_absolute() and path.name) or "\0" in str(path):
        raise ValueError
    path.with_name(f"{path.name}.progress").exists()  # OSError where no file is called so, or it is hidden
    return path


def _parsed(overrides: object) -> object:
    return from_json(overrides) if isinstance(overrides, str) else overrides


Named = Annotated[Path, AfterValidator(_named)]  # a job's settings are the word of whoever started it


@dataclass(frozen=True)
class Job:
    """What is to be run, in files of the machine that the SuperLink starts it on."""

    scenario: str  # a file, or the name of one that comes with fedsim
    overrides: Annotated[Sequence[str], BeforeValidator(_parsed)]  # PATH=VALUE of the scenario
    federation: Named
    out: Named
    # whether to go on with the run that did not end there; again: if it began
    resume: bool | Literal["again"]
    give_up: bool = False  # whether to close it at its silos instead

    @classmethod
    def of(cls, settings: Config) -> Job:
        """The job of a run that was started with these settings, which goes on; OSError or ValueError if it
        was started by another program than fedsim.
        """
        return TypeAdapter(cls).validate_python({**settings, "resume": True})

    @property
    def settings(self) -> Config:
        """The settings of the run, in the form that Flower takes them."""
        paths = {"federation": str(self.federation), "out": str(self.out), "progress": str(self.progress)}
        overrides = json.dumps(list(self.overrides))
        return {
            "scenario": self.scenario,
            "overrides": overrides,
            "resume": self.resume,
            "give_up": self.give_up,
            **paths,
        }

    @property
    def progress(self) -> Path:
        """Where the run says how far it is."""
        return self.out.with_name(f"{self.out.name}.progress")

    @property
    def log(self) -> Path:
        """The log of the run, on the machine that it runs on."""
        return self.out.with_name(f"{self.out.name}.log")

    @property
    def stop(self) -> Path:
        """A file that its operator makes: the run ends when the round in hand is in the record."""
        return stop_of(self.progress)


def stop_of(progress: Path) -> Path:
    """The file beside a run's progress that ends it after a round."""
    return progress.with_suffix(".stop")


def kept(attempt: Callable[[Job], Status], job: Job, tell: Tell, keep: bool) -> Status:
    """Run a job to its end, by more attempts than one: after a SuperLink that was away has ended the run's
    process, and to `keep` it up after all that may heal.

    Raises:
        Away, Ended, Refused: as of an attempt (`submit`); to keep it up, Ended before anything has begun.
    """
    pause = 0.0
    while True:
        began = time.monotonic()
        try:
            status = attempt(job)
        except (Away, Ended, Refused) as error:
            if not keep or (isinstance(error, Ended) and state_of(job.out) != "begun"):
                raise
            status = Status("away", str(error))
        again = (status.away and status.cut_off) or (status.held and job.resume == "again")
        if not (status.heals if keep else again):
            return status
        lasted = time.monotonic() - began
        pause = PAUSE if lasted > LONGEST_PAUSE else min(max(PAUSE, 2 * pause), LONGEST_PAUSE)
        why = f"the run's process was cut off ({status.details})" if status.cut_off else status.details
        tell(of_words(f"{why}; going on in {pause:.0f} s"))
        time.sleep(pause)
        job = replace(job, resume="again")


def submit(
    control: Control,
    job: Job,
    keys: Mapping[str, bytes],
    patience: float,
    tell: Tell,
    deadline: float = math.inf,
    least: int | None = None,
) -> Status:
    """Run a job to its end.

    Args:
        patience: seconds that `least` silos are waited for, by default all, and a SuperLink that is away.
        deadline: seconds for the others.

    Raises:
        Refused: too few silos are there when patience is over, or the SuperLink does not begin the run.
        Away: the SuperLink cannot be reached to begin with.
        KeyboardInterrupt: the run has been stopped, after a round unless interrupted twice or the round takes
            longer than `GRACE`, and can be resumed.
    """
    enroll(control, keys)
    _wait(control, keys, tell, patience, deadline, len(keys) if least is None else least)
    for file in (job.progress, job.stop):
        file.unlink(missing_ok=True)
    run, reader = control.start(job.settings), Reader(job.progress)
    try:
        try:
            return _follow(control, run, reader, tell, patience=patience)
        except KeyboardInterrupt:
            status = end_round(control, run, job, reader, tell)
            if status.word == "completed":
                return status
            raise
    except BaseException:
        with suppress(InputError):
            control.stop(run)
        raise
    finally:
        for file in (job.progress, job.stop):
            file.unlink(missing_ok=True)


def end_round(control: Control, run: int, job: Job, reader: Reader, tell: Tell) -> Status:
    """Let the run end its round: a sum that silos have sent and no shuffler has released would be lost.

    A run that is at no round yet, or that another machine has, writes none here and is not waited for.
    """
    if not any(line.of for line in Reader(job.progress).new()):
        return Status("unknown", "")

    def tell_if_there(line: Line) -> None:
        with suppress(OSError):  # a terminal that has gone sends SIGHUP, and takes no line
            tell(line)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # shells send a second one
    try:
        job.stop.touch()
        tell_if_there(of_words("ending the round in hand; Ctrl-C again ends it at once"))
        return _follow(control, run, reader, tell_if_there, GRACE)
    finally:
        signal.signal(signal.SIGHUP, before)


def _wait(
    control: Control, keys: Mapping[str, bytes], tell: Tell, patience: float, deadline: float, least: int
) -> None:
    """Until every silo's node is online, or so many as a run needs once the deadline is over; says which are
    not. Nodes that are on their way take a few seconds, and nothing is said of them.
    """
    start, told = time.monotonic(), ""
    while missing := _missing(control, keys):
        words = f"waiting for {', '.join(missing)} to join {control.address}"
        waited, enough = time.monotonic() - start, len(keys) - len(missing) >= least
        if enough and waited > deadline:
            return
        if waited > patience and not enough:
            raise Refused(f"{words}: not there after {patience:.0f} s")
        if waited > ON_THEIR_WAY and words != told:
            tell(of_words(words))
            told = words
        time.sleep(0.3)


def _missing(control: Control, keys: Mapping[str, bytes]) -> list[str]:
    nodes: Mapping[bytes, str] = {}
    with suppress(Away):
        nodes = control.nodes()
    return [name for name, key in keys.items() if nodes.get(key) != "online"]


_NOT_BEGUN = {
    "pending": "has not begun the run: its SuperExec, which starts runs, is perhaps not there or does not "
    "trust its certificate, as the SuperLink's log would tell",
    "starting": "starts the run's ServerApp, which is slow or has died, as the SuperLink's log would tell",
}
"""What a SuperLink does with a run that has not begun, by the run's status."""


def _follow(
    control: Control,
    run: int,
    reader: Reader,
    tell: Tell,
    seconds: float = math.inf,
    patience: float = math.inf,
) -> Status:
    """Until the run is over, or for so many seconds, or until the SuperLink has been away longer than
    `patience`.
    """
    heard = start = time.monotonic()
    told = away = said = False
    while True:
        try:
            status = replace(control.status(run), away=away)
            heard = time.monotonic()
        except InputError as error:
            status, silent, away = Status("unknown", ""), time.monotonic() - heard, True
            if silent > patience:
                return Status("away", f"the SuperLink is away ({error})")
            if silent > AWAY and not isinstance(error, Away):
                return Status("failed", f"the SuperLink does not know the run any more ({error})", away=True)
            if silent > AWAY and not said:
                tell(of_words(f"the SuperLink is away; it is waited for{_at_most(patience)}"))
                said = True
        for line in reader.new():
            tell(line)
        if status.over or time.monotonic() > start + seconds:
            return status
        if status.word in _NOT_BEGUN and time.monotonic() > start + SLOW:
            words = f"{control.address} {_NOT_BEGUN[status.word]}"
            if time.monotonic() > start + NEVER:
                raise Refused(f"{words}; not after {NEVER:.0f} s")
            if not told:
                tell(of_words(words))
                told = True
        time.sleep(LOOK)


def _at_most(seconds: float) -> str:
    return "" if math.isinf(seconds) else f", {timedelta(seconds=round(seconds))} at most"
