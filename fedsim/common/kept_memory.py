"""Memory that a process frees and asks for again, round after round, stays its own."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3), in glibc's malloc.h
_LARGEST = 2**30


def keep_memory() -> None:
    """Have glibc keep freed blocks below 1 GiB. It gives large ones back, and each new one costs a page fault
    for every 4 KiB: a tenth of the time of runs that fold. Elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(option, _LARGEST)
