"""Finished trials of a run that has not ended: they are kept on disk, and a later process goes on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.files import remove_drafts, whole_file
from fedsim.common.serialise import canonical, mapping, text
from fedsim.results.kept_trial import KeptTrial, read_trial, write_trial
from fedsim.results.outcome import Measurement, Results, TrialResult, variants
from fedsim.results.place import UNFINISHED, check_free, unwritable
from fedsim.results.run_directory import SECRET
from fedsim.results.summary import FILE
from fedsim.scenario.files import digests_of
from fedsim.scenario.load import relative
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.run_digest import run_digest
from fedsim.sweeps.cache import code_version

_MADE_OF, _SCENARIO, _LOCK = "run.json", "scenario.yaml", ".lock"


class NotKept(Exception):
    """A trial that has ended could not be written."""


@contextmanager
def kept(out: Path | None, resolved: Resolved, resume: bool) -> Iterator[Results]:
    """Results that keep in `out` every trial that ends; with `resume` those of before are among them.

    `out` is this process's alone inside the block. Where nothing was kept it is not there afterwards.

    Args:
        out: a run directory; None keeps nothing.
        resolved: the run.
        resume: `out` is of an unfinished run, and otherwise a new directory.

    Raises:
        InputError: `out` cannot be used, or is of a run that would come to something else.
        NotKept: out of `Results.finish`: the disk is full.
    """
    if out is None:
        yield Results()
        return
    folder = (_found(out) if resume else check_free(out)) / UNFINISHED
    missing = [each for each in folder.parent.parents if not each.exists()]  # from the inmost
    handle = _opened(folder, out, resume)
    try:
        try:
            _begin(folder, _made_of(resolved), resolved, resume)
            results = _results(folder, out)
        except OSError as error:
            raise unwritable(out, error) from None
        yield results
    finally:
        _tidy(folder, missing)
        os.close(handle)


def discard(out: Path) -> None:
    """Remove what only an unfinished run needs."""
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


def kept_in(out: Path) -> list[Path]:
    """The files of a run directory's kept trials, by number."""
    found = (out / UNFINISHED).glob("trial-*.safetensors")
    return sorted(found, key=lambda file: int(file.stem.removeprefix("trial-")))


def with_drawn(scenario: Scenario, out: Path) -> Scenario:
    """The scenario with the seed and the nonce that the unfinished run in `out` drew, where it gives none."""
    kept = mapping(_found(out) / UNFINISHED / _SCENARIO, "scenario", "data:")
    own = scenario.model_fields_set
    return scenario.model_copy(update={k: kept.get(k) for k in ("seed", "nonce") if k not in own})


def _found(out: Path) -> Path:
    if not (out / UNFINISHED / _MADE_OF).is_file():
        done = (out / FILE).is_file()
        hint = "is complete; nothing is left of it to run" if done else "holds no run that can go on"
        raise InputError("--resume", str(out), hint)
    return out.resolve()


def _opened(folder: Path, out: Path, resume: bool) -> int:
    """Claim the folder, for as long as the file is open."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=resume)
        handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
    except FileExistsError:
        raise _in_use(out) from None
    except OSError as error:
        raise unwritable(out, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise _in_use(out) from None
    return handle


def _in_use(out: Path) -> InputError:
    return InputError("--out", str(out), "another run is at work in it; name another directory")


def _made_of(resolved: Resolved) -> dict[str, Any]:
    """What the run's results follow from: equal ones come to the same."""
    tree = resolved.scenario.model_dump(mode="json", exclude_none=True)
    tree["runtime"].pop("address", None)
    files = list(digests_of(resolved.scenario).values())
    run = [run_digest(resolved, canonical(files), variant) for variant in variants(resolved)]
    asked = {key: value for key, value in tree.items() if key not in ("name", "description")}
    digest = hashlib.sha256(canonical([asked, run, files]).encode()).hexdigest()
    return {"scenario": digest, "code": code_version()}


def _begin(folder: Path, made_of: dict[str, Any], resolved: Resolved, resume: bool) -> None:
    file = folder / _MADE_OF
    if not resume:
        scenario = text(relative(resolved.scenario.model_dump(mode="json", exclude_none=True), folder))
        (folder / _SCENARIO).write_text(SECRET + scenario, encoding="utf-8")
        with whole_file(file) as draft:
            draft.write_text(json.dumps(made_of), encoding="utf-8")
        return
    remove_drafts(folder)
    before = json.loads(file.read_text(encoding="utf-8"))
    for part, what in (
        ("scenario", "another scenario, or other data"),
        ("code", "another version of the code"),
    ):
        if before.get(part) != made_of[part]:
            hint = f"was begun with {what}: its trials would not be of one run; start a new one"
            raise InputError("--resume", str(folder.parent), hint)


def _results(folder: Path, out: Path) -> Results:
    def keep(result: TrialResult, measurements: Sequence[Measurement]) -> None:
        try:
            write_trial(KeptTrial(result, list(measurements)), folder / f"trial-{result.trial}.safetensors")
        except OSError as error:
            raise NotKept(f"{out}: cannot be written ({error.strerror or error})") from None

    results = Results(keep=keep)
    for file in kept_in(folder.parent):
        trial = read_trial(file)
        results.trials[trial.result.trial] = trial.result
        results.measurements += trial.measurements
    return results


def _tidy(folder: Path, made: Sequence[Path]) -> None:
    """Leave nothing of a run that has nothing to go on from, nor of the folders that were made for it."""
    if not kept_in(folder.parent) and not (folder.parent / FILE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for each in (folder.parent, *made):
                each.rmdir()
