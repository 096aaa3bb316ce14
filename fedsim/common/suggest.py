"""Which name did they mean? Every message about an unknown name points to the nearest one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 12


def suggest(name: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or the first few of all of them.

    >>> suggest("Digit", ["digits", "synthetic"])
    "did you mean 'digits'?"
    >>> suggest("mnist", ["digits", "synthetic"])
    "known: 'digits', 'synthetic'"
    """
    names = list(known)
    folded = {text.casefold(): text for text in reversed(names)}
    close = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "known: " + ", ".join(repr(text) for text in names[:SHOWN]) + more
