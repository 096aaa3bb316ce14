"""Why a run, or the process that ran it, came to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.protocol.limits import DIVERGED

Kind = Literal["bad input", "refused", "diverged", "out of memory", "failed", "worker died"]

_NO_MEMORY = ("not enough memory", "can't allocate memory", "memory pressure", "running low on memory")
"""Words in a RuntimeError of torch, and in an error of Ray about a worker that it ended."""


class WorkerLost(Exception):
    """A process that ran a part of the work, or all that Ray had, was ended from outside."""


@dataclass(frozen=True)
class Failure:
    """The kind of failure, and the message to show."""

    kind: Kind
    message: str


def failure(error: Exception) -> Failure:
    """The failure of a run that raised.

    >>> failure(Refused("it costs too much"))
    Failure(kind='refused', message='it costs too much')
    >>> failure(ZeroDivisionError("division by zero"))
    Failure(kind='failed', message='ZeroDivisionError: division by zero')
    """
    if DIVERGED in str(error):
        return Failure("diverged", str(error))
    if isinstance(error, InputError):
        return Failure("bad input", str(error))
    if isinstance(error, Refused):
        return Failure("refused", str(error))
    if isinstance(error, MemoryError):
        return Failure("out of memory", str(error) or "no memory is left")
    text = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
    return Failure("out of memory" if _of_memory(error) else "failed", text)


def death(error: Exception) -> Failure:
    """The failure of a worker that ended, from Ray's error."""
    if _of_memory(error) or "OutOfMemory" in type(error).__name__:
        return Failure("out of memory", "Ray ended the worker because memory ran out")
    text = "the process that ran it was ended from outside, perhaps for want of memory"
    return Failure("worker died", text)


def _of_memory(error: Exception) -> bool:
    text = " ".join(str(error).split())
    return any(words in text for words in _NO_MEMORY)
