"""Errors of plug-in code: which algorithm or part failed, where it comes from, in which half and round."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import NoReturn

from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.protocol.contract import innermost

_OWN = "fedsim"
_LIBRARIES = ("torch", "numpy", "scipy", "pandas", "sklearn")
_PYTHON = Path(inspect.getfile(traceback)).parent
_STATE = "keep what lasts in memory (silo method) or in local variables (server method)"


@dataclass(frozen=True)
class Blame:
    """Makes errors that name an algorithm; its name is looked up where there is one to make."""

    algorithm: object  # or its class

    def breach(self, where: str, what: str) -> Refused:
        """It broke the contract; `what` is made of public values."""
        return Refused(f"{self._named}, {where}: {what}")

    def failed(self, where: str, error: Exception, names: tuple[str, ...] = ()) -> NoReturn:
        """Its code raised; `names` are of the tensors that it was given.

        Refusals keep being refusals, bad input stays as it is; the text of other errors may be made of what
        the code was given. Refused if it was refused something, else PluginError; the cause is chained.
        """
        if isinstance(error, InputError | PluginError | MemoryError):
            raise error
        if isinstance(error, Refused):
            raise self.breach(where, str(error)) from error
        raise PluginError(f"{self._named}, {where}: {raised(error, names)}") from error

    @property
    def _named(self) -> str:
        own = innermost(self.algorithm)  # wrappers only add rounds or queries
        return named("algorithm", own if isinstance(own, type) else type(own))


@contextmanager
def blaming(what: str, kind: type) -> Iterator[None]:
    """Name another package's part, such as a data set, where its code raises; ours raises as it is.
    PluginError names class, distribution or file, and line.
    """
    try:
        yield
    except (InputError, Refused, PluginError, MemoryError):
        raise
    except Exception as error:
        if _home(kind) == _OWN:
            raise
        raise PluginError(f"{named(what, kind)}: {raised(error)}") from error


def is_theirs(error: Exception, part: object) -> bool:
    """Whether it comes from another package's part, whose code is the last that ran, but for libraries'."""
    if _home(type(part)) == _OWN:
        return False
    files = {frame.filename for frame in _frames(error)[-1:]}
    members = [member for kind in type(part).__mro__ for member in vars(kind).values()]
    return any(member.__code__.co_filename in files for member in members if isinstance(member, FunctionType))


def named(what: str, kind: type) -> str:
    """A class and where it comes from.

    >>> named("algorithm", Blame)
    'algorithm Blame (fedsim)'
    """
    return f"{what} {kind.__qualname__} ({_home(kind)})"


def raised(error: Exception, names: tuple[str, ...] = ()) -> str:
    """The text of an error, the line that it comes from, and a hint where there is a likely one."""
    text = " ".join(str(error).split())
    hint, own = _hint(error, names), _frames(error)
    line = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"raised {type(error).__name__}: {text}{line}{'; ' if hint else ''}{hint}"


def _home(kind: type) -> str:
    """The distribution of a class, or its file."""
    top = kind.__module__.partition(".")[0]
    if top == _OWN:
        return top
    found = _distributions().get(top, ())
    if found:
        return f"{found[0]} {metadata.version(found[0])}"
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else "defined in this session"


_distributions = cache(metadata.packages_distributions)


def _frames(error: Exception) -> list[traceback.FrameSummary]:
    """Frames of code that is neither fedsim's nor a library's."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]


def _ours(file: str) -> bool:
    """Whether a file is fedsim's, or of a library that plug-ins use."""
    path = Path(file)
    root = Path(inspect.getfile(Refused)).parents[2]
    own = any(path.is_relative_to(root / package) for package in (_OWN, "silos", "server", "shuffler"))
    return own or any(part in _LIBRARIES for part in path.parts) or path.is_relative_to(_PYTHON)


def _hint(error: Exception, names: tuple[str, ...]) -> str:
    if isinstance(error, KeyError) and names and error.args and error.args[0] not in names:
        return f"it was given {', '.join(names)}"
    if isinstance(error, FrozenInstanceError):
        return _STATE
    if isinstance(error, TypeError) and "Query" in str(error):
        return 'a query is Query("gradient", (w,), clip) and perhaps a batch'
    return ""
