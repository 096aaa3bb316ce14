"""Standard normal numbers drawn on this thread and on one more, while this one may do something else.

Every row has a generator of its own, so which thread draws it changes nothing. NumPy lets go of the
interpreter while it draws.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import numpy as np

_WORTH = 50_000  # numbers, about half a millisecond: less is not worth a second thread

_Work = deque[tuple[np.random.Generator, np.ndarray]]


class Filling:
    """Fills rows, each by its own generator; begins at once if there are many numbers to draw."""

    def __init__(self, streams: Sequence[np.random.Generator], rows: np.ndarray) -> None:
        self._work: _Work = deque(zip(streams, rows, strict=True))
        shared = rows.size >= _WORTH and len(streams) > 1 and _cores() > 1
        self._helper = _pool().submit(_drain, self._work) if shared else None

    def finish(self) -> None:
        """Draw what is not drawn yet, and wait for the other thread's last row."""
        _drain(self._work)
        if self._helper is not None:
            self._helper.result()

    def abandon(self) -> None:
        """Leave the rest; afterwards no generator is in use."""
        self._work.clear()
        if self._helper is not None:
            wait([self._helper])


def _drain(work: _Work) -> None:
    while work:
        try:
            stream, row = work.pop()
        except IndexError:  # the other thread took the last one
            return
        stream.standard_normal(out=row)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="noise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
