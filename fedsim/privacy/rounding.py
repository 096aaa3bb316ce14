"""Rounding of privacy figures for display, always in the conservative direction.

Upper bounds on epsilon or delta are rounded up. Lower bounds (attained by an attack, or by a pair of data
sets) are rounded down, and so are values that a reader may set.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context

UNBOUNDED = "none"


def shown_up(value: float | None, digits: int = 4) -> str:
    """`value` rounded up to so many significant digits; None, where nothing is guaranteed, is "none".

    >>> shown_up(1.00004), shown_up(0.99996), shown_up(1.0), shown_up(0.1)
    ('1.001', '1', '1', '0.1')
    >>> shown_up(4.3282e-05, 2), shown_up(float("inf"))
    ('4.4e-05', 'inf')
    """
    return _shown(value, digits, ROUND_CEILING)


def shown_down(value: float | None, digits: int = 4) -> str:
    """`value` rounded down to so many significant digits; see `shown_up`.

    >>> shown_down(1.99999), shown_down(0.0), shown_down(None)
    ('1.999', '0', 'none')
    """
    return _shown(value, digits, ROUND_FLOOR)


def _shown(value: float | None, digits: int, rounding: str) -> str:
    if value is None:
        return UNBOUNDED
    # repr is the shortest text of a float: 0.1 stays 0.1, though its binary value lies above a tenth.
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))):.{digits}g}"
