"""A command of the operator's own that reads records where they live and writes the silo's table, once.

It is named in silo.yaml alone, runs in a process of its own with the operator's environment (a database's
password, say), and has ended before the silo reads what it wrote. The daemon loads none of its code.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.files import remove_drafts, whole_file
from silos.config import ROOT, Config


def write_table(config: Config) -> None:
    """Write the table at `records.path` by the command `reader`, unless it is there already.

    Raises:
        InputError: the command cannot be started, or fails; then no table is there.
    """
    place = getattr(config.records, "path", None)
    if not config.reader or not isinstance(place, Path) or place.exists():
        return
    remove_drafts(place.parent)  # of a command that was killed, with records
    with whole_file(place) as draft, open(draft, "xb", opener=_for_the_owner) as table:
        try:
            done = subprocess.run(
                config.reader, stdin=subprocess.DEVNULL, stdout=table, cwd=place.parent, check=False
            )
        except OSError as error:
            raise _wrong(config, f"cannot be started: {error.strerror}") from None
        if done.returncode:
            raise _wrong(config, f"ended with exit code {done.returncode}, so no table is kept")


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _wrong(config: Config, hint: str) -> InputError:
    return InputError(f"{ROOT}.reader", list(config.reader), hint)
