"""Errors: input to be mended, refusals of a silo, failures of plug-ins; and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable


class _OneLine(Exception):
    """An error that says all in one line, which a notebook shows instead of a traceback; `raise ... from`
    keeps the cause."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class InputError(_OneLine, ValueError):
    """Input that its author can mend: names the field, the value and what would be right."""

    def __init__(self, field: str, value: object, hint: str) -> None:
        text = repr(value)
        shown = text if len(text) <= 200 else text[:197] + "..."
        super().__init__(f"{field}: {shown}: {hint}")
        self.field, self.value, self.hint = field, value, hint

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str]]:
        return InputError, (self.field, self.value, self.hint)


class Refused(_OneLine):
    """A silo declines to release. The text is made of public values only, never of records."""


class Busy(Refused):
    """The same request may be answered later."""


class Lost(Refused):
    """The same request will never be answered."""


class Behind(Lost):
    """So will another: who asks is behind what was answered."""


CAN_RESUME = "the rounds so far are kept, so that the run can be resumed"
CAN_BEGIN = "nothing has been released, and the same may be begun again"
"""The ends of why a run did not end, where the same may go well another time."""


class PluginError(_OneLine):
    """Code of an algorithm or of another part failed: says which, where and why, in one line.

    The text quotes the error that the code raised, so it is shown only to a party that holds the code's
    input: a simulation, a dry run, a server. A silo's daemon never sends it. The error itself is the cause.
    """


SHOWN = 12


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is most like it, whatever its case; None where none is like it."""
    from difflib import get_close_matches

    folded = {text.casefold(): text for text in reversed(list(known))}
    close = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def suggest(name: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or the first few of all of them.

    >>> suggest("Digit", ["digits", "synthetic"])
    "did you mean 'digits'?"
    >>> suggest("mnist", ["digits", "synthetic"])
    "known: 'digits', 'synthetic'"
    """
    names = list(known)
    if close := nearest(name, names):
        return f"did you mean {close!r}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "known: " + ", ".join(repr(text) for text in names[:SHOWN]) + more
