"""Where a daemon's lines go: stderr, and a file in its state that never grows beyond a few copies.

Lines are made of what leaves anyway and of public values, never of records.
"""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedsim.common.errors import InputError

_BYTES, _OLD = 5_000_000, 3


def begin(file: Path, *packages: str) -> None:
    """Write what these packages log to stderr and to `file`, mode 0600.

    Raises:
        InputError: the file cannot be written.
    """
    logging.raiseExceptions = False  # a full disk is no reason to stop, nor to fill stderr
    try:
        file.touch(mode=0o600)
        kept = RotatingFileHandler(file, maxBytes=_BYTES, backupCount=_OLD, encoding="utf-8")
    except OSError as error:
        raise InputError("state", str(file), f"a file that can be written ({error.strerror})") from None
    handlers = (kept, logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for package in packages:
        top = logging.getLogger(package)
        top.setLevel(logging.INFO)
        for handler in handlers:
            top.addHandler(handler)
