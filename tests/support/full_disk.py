"""A disk without space, as the system tells it: files may not grow beyond a size."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk(size: int) -> Iterator[Callable[[int], None]]:
    """The system refuses what is longer than `size`, or than what is told later."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def refuse(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    refuse(size)
    try:
        yield refuse
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill(state: Path, pid: int = 0) -> None:
    """From here on a process, by default this one, may write no file beyond the largest in its state."""
    largest = max(file.stat().st_size for file in state.iterdir())
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
