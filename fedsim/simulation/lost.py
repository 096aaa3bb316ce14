"""What became of a worker that did not answer."""

from __future__ import annotations

from typing import Literal


class WorkerLost(Exception):
    """A process that ran a part of the work, or all that Ray had, was ended from outside."""


def death(error: Exception) -> tuple[Literal["out of memory", "worker died"], str]:
    """Kind and cause of a worker's end, from what Ray says of it."""
    text = " ".join(str(error).split())
    if "OutOfMemory" in type(error).__name__ or "memory pressure" in text or "running low on memory" in text:
        return "out of memory", "Ray ended the worker because memory ran out"
    return "worker died", "the process that ran it was ended from outside, perhaps for want of memory"
