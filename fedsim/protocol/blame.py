"""What is said where code of an algorithm fails: which one, from where, which half and which round."""

from __future__ import annotations

import inspect
import sys
import traceback
from dataclasses import FrozenInstanceError, dataclass
from importlib import metadata
from pathlib import Path

from fedsim.common.errors import InputError, PluginError, Refused

_STATE = "keep what lasts in memory (silo half) or in local variables (server half)"


@dataclass(frozen=True)
class Blame:
    """Makes errors that name an algorithm; its name is looked up where there is one to make."""

    algorithm: object

    def breach(self, where: str, what: str) -> Refused:
        """It broke the contract; `what` is made of public values."""
        return Refused(f"{named('algorithm', type(self.algorithm))}, {where}: {what}")

    def failure(self, where: str, error: Exception, names: tuple[str, ...] = ()) -> Exception:
        """Its code raised; `names` are of the tensors that it was given.

        Refusals keep being refusals, bad input stays as it is; the text of other errors may be made of what
        the code was given.
        """
        if isinstance(error, InputError | PluginError):
            return error
        if isinstance(error, Refused):
            return self.breach(where, str(error))
        return PluginError(f"{named('algorithm', type(self.algorithm))}, {where}: {raised(error, names)}")


def named(what: str, kind: type) -> str:
    """A class and where it comes from.

    >>> named("algorithm", Blame)
    'algorithm Blame (fedsim)'
    """
    return f"{what} {kind.__qualname__} ({_home(kind)})"


def raised(error: Exception, names: tuple[str, ...] = ()) -> str:
    """What an error says, the line that it comes from, and a hint where there is a likely one."""
    text = " ".join(str(error).split())
    hint = _hint(error, names)
    return f"raised {type(error).__name__}: {text}{_line(error)}{'; ' if hint else ''}{hint}"


def _home(kind: type) -> str:
    """The distribution of a class, or its file."""
    top = kind.__module__.partition(".")[0]
    if top == "fedsim":
        return top
    found = metadata.packages_distributions().get(top, ()) if top not in ("tests", "__main__") else ()
    if found:
        return f"{found[0]} {metadata.version(found[0])}"
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).name if file else "defined in this session"


def _line(error: Exception) -> str:
    """The last line of code that is not of a package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and not _ours(frame.filename)]
    if not own:
        return ""
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})"


def _ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(inspect.getfile(Refused)).parents[1])


def _hint(error: Exception, names: tuple[str, ...]) -> str:
    if isinstance(error, KeyError) and names and error.args and error.args[0] not in names:
        return f"it was given {', '.join(names)}"
    if isinstance(error, FrozenInstanceError):
        return _STATE
    if isinstance(error, TypeError) and "Query" in str(error):
        return 'a query is Query("gradient", (w,), clip) and perhaps a batch'
    return ""
