"""Settings of the running process: its threads, its memory, and Ctrl-C."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes in one thread; the caller's number comes back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C inside the block, where it can be ignored: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
