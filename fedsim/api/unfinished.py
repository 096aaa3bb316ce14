"""The record of a run that has not ended: finished trials are kept on disk, and a later process goes on."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.files import UNFINISHED, check_free, remove_drafts, unwritable
from fedsim.common.serialise import canonical, mapping, to_yaml
from fedsim.results.outcome import Results, variants
from fedsim.results.record import Begun, Finished, Record, keys_in
from fedsim.results.run_directory import SECRET
from fedsim.results.summary import FILE
from fedsim.scenario.load import digests_of, relative
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.run_digest import run_digest
from fedsim.sweeps.cell import code_version

_RECORD, _SCENARIO, _BEGUN = "record.sqlite", "scenario.yaml", "begun"


@contextmanager
def kept(
    out: Path | None, resolved: Resolved, resume: bool, complain: Callable[[str], None]
) -> Iterator[Results]:
    """Results that keep in `out` every trial that ends; with `resume` those of before are among them.

    No other process uses `out` inside the block. Where nothing was kept it is not there afterwards.

    Args:
        out: a run directory; None keeps nothing.
        resolved: the run.
        resume: `out` is of an unfinished run, and otherwise a new directory.
        complain: told of kept trials that are damaged, and are run again.

    Raises:
        InputError: `out` cannot be used, or is of a run that would come to something else.
    """
    if out is None:
        yield Results()
        return
    folder = (_found(out) if resume else check_free(out)) / UNFINISHED
    missing = [each for each in folder.parent.parents if not each.exists()]  # from the inmost
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(exist_ok=resume)
            record = stack.enter_context(Record.open(folder / _RECORD, complain))
            stack.callback(_tidy, record, folder, missing)
            results = _results(record, folder, resolved, resume, complain)
        except (FileExistsError, BlockingIOError):
            hint = "another run is at work in it; name another directory"
            raise InputError("--out", str(out), hint) from None
        except OSError as error:
            raise unwritable(out, error) from None
        yield results


def discard(out: Path) -> None:
    """Remove what only an unfinished run needs."""
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


def finished_in(out: Path) -> int:
    """How many finished trials an unfinished run's directory has, while no process is at work in it."""
    return len([key for key in keys_in(out / UNFINISHED / _RECORD) if key != _BEGUN])


def with_drawn(scenario: Scenario, out: Path) -> Scenario:
    """The scenario with the seed and the nonce that the unfinished run in `out` drew, where it gives none."""
    kept = mapping(_found(out) / UNFINISHED / _SCENARIO, "scenario", "data:")
    own = scenario.model_fields_set
    return scenario.model_copy(update={k: kept.get(k) for k in ("seed", "nonce") if k not in own})


def _found(out: Path) -> Path:
    if not (out / UNFINISHED / _RECORD).is_file():
        done = (out / FILE).is_file()
        hint = "is complete; nothing is left of it to run" if done else "holds no run that can go on"
        raise InputError("--resume", str(out), hint)
    return out.resolve()


def _results(
    record: Record, folder: Path, resolved: Resolved, resume: bool, complain: Callable[[str], None]
) -> Results:
    made_of, results = _made_of(resolved), Results(record, folder)
    if not resume:
        scenario = to_yaml(relative(resolved.scenario.model_dump(mode="json", exclude_none=True), folder))
        (folder / _SCENARIO).write_text(SECRET + scenario, encoding="utf-8")
        record.append(_BEGUN, [made_of])
        return results
    remove_drafts(folder)
    for before in record.rows(Begun):
        for part, what in (
            ("scenario", "another scenario, or other data"),
            ("code", "another version of the code"),
        ):
            if getattr(before, part) != getattr(made_of, part):
                hint = f"was begun with {what}: its trials would not be of one run; start a new one"
                raise InputError("--resume", str(folder.parent), hint)
    results.recall(complain)
    return results


def _made_of(resolved: Resolved) -> Begun:
    """What the run's results follow from: equal ones come to the same."""
    tree = resolved.scenario.model_dump(mode="json", exclude_none=True)
    tree["runtime"].pop("address", None)
    files = list(digests_of(resolved.scenario).values())
    run = [run_digest(resolved, canonical(files), variant) for variant in variants(resolved)]
    asked = {key: value for key, value in tree.items() if key not in ("name", "description")}
    digest = hashlib.sha256(canonical([asked, run, files]).encode()).hexdigest()
    return Begun(digest, code_version())


def _tidy(record: Record, folder: Path, made: list[Path]) -> None:
    """Leave nothing of a run that has nothing to go on from, nor of the folders that were made for it."""
    if not record.rows(Finished) and not (folder.parent / FILE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for each in (folder.parent, *made):
                each.rmdir()
