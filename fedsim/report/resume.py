"""The record in the directory of a run or a sweep: begun, gone on with, or left as nothing.

Beside it a run has the scenario that it began with, and until it has ended the models of each finished trial.
These are no part of the record: an SQLite file keeps the space of what is removed from it, and giving that up
takes as much again, while a file that is removed is gone, on a full disk too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from fedsim.common.chain import RUN, reading
from fedsim.common.durable import atomic_file, remove_drafts
from fedsim.common.errors import InputError, Refused
from fedsim.common.files import RECORD, SCENARIO, check_free, of_this_version, remove_models, unwritable
from fedsim.report.record import BEGUN, ENDED, OVER, Begun, Ended, Record
from fedsim.report.summary import FILE


@contextmanager
def opened(
    out: Path,
    made_of: Begun,
    tell: Callable[[str], None],
    resume: bool | None,
    scenario: str = "",
    durable: bool = True,
) -> Iterator[Record]:
    """The record in a directory that no other process uses inside the block; where nothing was kept in it, it
    and the folders that were made for it are not there afterwards.

    Args:
        out: a new directory, or with `resume` one that has a record; None: either.
        made_of: what the record's entries are of.
        tell: called with a line about each damaged entry, whose work is done again.
        resume: see `out`.
        scenario: a new directory's scenario.yaml; empty: it has none yet.
        durable: see `Record.open`.

    Raises:
        InputError: `out` cannot be used, or its record is of something else.
    """
    of_this_version("--resume" if resume else "--out", out)
    there = (out / RECORD).is_file()
    place = out.resolve() if there and resume is not False else check_free(out)
    missing = [each for each in place.parents if not each.exists()]  # from the inmost
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            record = stack.enter_context(Record.open(place / RECORD, tell, durable))
            _begin(record, out, made_of, resume, scenario)
            stack.callback(_tidy, record, place, missing)
        except BlockingIOError:
            hint = f"another {made_of.word} is at work in it; wait for it, or name another directory"
            raise InputError("--out", str(out), hint) from None
        except OSError as error:
            if not there:
                _remove(place, missing)
            raise unwritable(out, error) from None
        yield record


State = Literal["none", "begun", "over", "ended", "outstanding"]


def state_of(out: Path) -> State:
    """What a directory has: of a run or sweep whether it has "begun", also while it is under way, or "ended";
    of a deployed run also whether it is "over" without a model, or has ended and keeps its rounds, since its
    evaluation is "outstanding".
    """
    try:
        last = Record.read(out / RECORD).rows(Ended) if (out / RECORD).is_file() else None
    except InputError:  # it is held or damaged, which going on with it says
        return "begun"
    if last is None:
        return "ended" if (out / FILE).exists() else "none"
    if OVER in last:
        return "over"
    if not last or not (out / FILE).exists():
        return "begun"
    with suppress(Refused, OSError), reading(out / RECORD, RUN) as connection:
        if connection.execute("SELECT 1 FROM bodies LIMIT 1").fetchone() is not None:
            return "outstanding"
    return "ended"


def place_of(out: Path, resume: bool) -> Path:
    """The absolute path of a deployed run's directory: a new one, or with `resume` one where a run goes on,
    or its evaluation is outstanding; InputError if it is neither.
    """
    if (old := Path(f"{out.resolve()}.checkpoint")).exists():
        hint = f"is of an earlier version of fedsim ({old.name}), which goes on with it; name a new directory"
        raise InputError("--out", str(out), hint)
    there = state_of(out)
    if there == "begun" and not resume:
        hint = "holds a run that has not ended: --resume goes on, --give-up closes it at its silos"
        raise InputError("--out", str(out), hint)
    if there == "begun" or (resume and there == "outstanding"):
        return out.resolve()
    if there == "over":
        hint = "holds a run that is over: begin a new one elsewhere (--give-up tells silos that do not know)"
        raise InputError("--resume" if resume else "--out", str(out), hint)
    if resume:
        raise InputError("--resume", str(out), "holds no run that can go on")
    remove_drafts(out)
    return check_free(out)


def _begin(record: Record, out: Path, made_of: Begun, resume: bool | None, scenario: str) -> None:
    """Append the first entry, or compare it; what had ended has not any more."""
    remove_drafts(out)
    if resume is False and record.keys:
        raise InputError("--out", str(out), "holds another run; name a new directory")
    if resume and Ended("finished") in record.rows(Ended) and (out / FILE).exists():
        remove_models(out)
        raise InputError("--resume", str(out), "is complete; nothing is left of it to run")
    if not record.rows(Begun):
        if record.store is not None and record.store.newest.seq:
            hint = (
                "has lost what it was begun with, so that its trials may be of another run; start a new one"
            )
            raise InputError("--resume", str(out), hint)
        if scenario:
            with atomic_file(out / SCENARIO) as draft:
                draft.write_text(scenario, encoding="utf-8")
        record.append(BEGUN, [made_of])
    for before in record.rows(Begun):
        _compare(before, made_of, out)
    if record.rows(Ended):
        record.append(ENDED, [])


def _compare(before: Begun, made_of: Begun, out: Path) -> None:
    if before.of != made_of.of:
        how = f"holds a {before.word}, which {GO_ON[before.of]} goes on with; name another directory"
        raise InputError("--out", str(out), how)
    different = "another scenario, or other data", "another version of the code"
    for old, new, what in zip(before[1:], made_of[1:], different, strict=True):
        if old != new:
            hint = f"was begun with {what}: its trials would not be of one run; start a new one"
            raise InputError("--resume", str(out), hint)


GO_ON = {
    "simulation": "fedsim simulate --resume",
    "sweep": "the same fedsim sweep --out",
    "deployment": "fedsim deploy --resume",
}


def _tidy(record: Record, place: Path, made: list[Path]) -> None:
    """Leave nothing of what has nothing to go on from."""
    if not (set(record.keys) - {BEGUN} or record.damaged or (place / FILE).exists()):
        _remove(place, made)


def _remove(place: Path, made: list[Path]) -> None:
    remove_models(place)
    for name in (RECORD, f"{RECORD}-journal", SCENARIO):
        (place / name).unlink(missing_ok=True)
    with suppress(OSError):
        for each in (place, *made):
            each.rmdir()
