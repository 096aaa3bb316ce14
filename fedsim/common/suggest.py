"""Which name did they mean? Every message about an unknown name points to the nearest one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 12


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is most like it, whatever its case; None where none is like it."""
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
