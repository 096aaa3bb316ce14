"""What `fedsim up` has running in a directory, in a file there: for those who look at it, and who end it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, TypeAdapter

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.deployment.processes import end_family, marked, over

FILE = "up.json"
_SECONDS = 120.0  # for an `up` to end its round, and then all that it started


@dataclass(frozen=True)
class Running:
    """The process of `fedsim up`, and what it started."""

    pid: Annotated[int, Field(gt=0)]
    began: float  # when that process did, in seconds since 1970: a number is given again
    # of all that it started (`fedsim.deployment.processes`)
    mark: Annotated[str, Field(pattern=r"^(/[0-9a-f]{16})+$")]
    superlink: str  # HOST:PORT

    @property
    def process(self) -> psutil.Process | None:
        """The process of `up`, while it runs."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid)
            if found.create_time() == self.began and not over(found):
                return found
        return None

    def end(self) -> int:
        """Have `up` end the round in hand and all that it started, and end what is left; how many processes.

        One that is busy for two minutes is killed.
        """
        count = 0
        if (up := self.process) is not None:
            count += 1 + sum(1 for _ in marked(self.mark))
            os.kill(self.pid, signal.SIGTERM)
            until = time.monotonic() + _SECONDS
            while not over(up) and time.monotonic() < until:
                time.sleep(0.1)
            with suppress(psutil.NoSuchProcess):
                up.kill()
        return count + end_family(self.mark)


@contextmanager
def recorded(directory: Path, mark: str, superlink: str) -> Iterator[None]:
    """While the block lasts, the directory says what runs in it; after a kill it still does."""
    own = psutil.Process()
    with atomic_file(directory / FILE) as draft:
        draft.write_text(json.dumps(asdict(Running(own.pid, own.create_time(), mark, superlink))))
    try:
        yield
    finally:
        (directory / FILE).unlink(missing_ok=True)


def running(directory: Path) -> Running | None:
    """What runs there; None if nothing was left running."""
    try:
        return TypeAdapter(Running).validate_json((directory / FILE).read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InputError("DIR", str(directory / FILE), "a file that `fedsim up` has written") from None


def check_alone(directory: Path) -> None:
    """InputError if an `up` runs in the directory, or something that one left."""
    there = running(directory)
    if there is not None and (there.process or next(marked(there.mark), None)):
        raise InputError("--out", str(directory), "all of it runs already; `fedsim down` ends it")
