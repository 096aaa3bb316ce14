"""A disk without space, as the system tells it: files may not grow beyond a size."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
