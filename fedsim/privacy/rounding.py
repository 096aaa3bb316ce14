"""How a privacy figure is written for a person: rounded so that it never flatters.

An epsilon or delta that bounds a loss from above is rounded up. One that bounds it from below (what an attack
attained, what some pair of data sets attains) is rounded down, and so is one that a person is to set.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context

UNBOUNDED = "none"


def shown_up(value: float | None, digits: int = 4) -> str:
    """The least number of so many significant digits that is not below `value`.

    None, where nothing is guaranteed, is "none".

    >>> shown_up(1.00004), shown_up(0.99996), shown_up(1.0), shown_up(0.1)
    ('1.001', '1', '1', '0.1')
    >>> shown_up(4.3282e-05, 2), shown_up(float("inf"))
    ('4.4e-05', 'inf')
    """
    return _shown(value, digits, ROUND_CEILING)


def shown_down(value: float | None, digits: int = 4) -> str:
    """The largest number of so many significant digits that is not above `value`; see `shown_up`.

    >>> shown_down(1.99999), shown_down(0.0), shown_down(None)
    ('1.999', '0', 'none')
    """
    return _shown(value, digits, ROUND_FLOOR)


def _shown(value: float | None, digits: int, rounding: str) -> str:
    if value is None:
        return UNBOUNDED
    # repr is the shortest text of a float: 0.1 stays 0.1, though its binary value lies above a tenth.
    rounded = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"
