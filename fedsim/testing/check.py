"""All properties of one example, checked one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.common.one_thread import one_thread
from fedsim.protocol.blame import raised
from fedsim.testing.example import Example
from fedsim.testing.properties import PROPERTIES, Property


@dataclass(frozen=True)
class Checked:
    """What came of a property; the reason is empty where it holds."""

    name: str
    outcome: Literal["passed", "failed", "left out", "not tried"]
    reason: str = ""


def check(example: Example) -> Iterator[Checked]:
    """The properties in their order; without a dry run the others are not tried.

    Raises:
        InputError: the example leaves out what is no property.
    """
    named = {each.name for each in PROPERTIES} | {each.case for each in PROPERTIES}
    for name in example.left_out:
        if name not in named:
            raise InputError(
                "left out", name, f"must be one of {', '.join(each.name for each in PROPERTIES)}"
            )
    runs = True
    with one_thread():
        for each in PROPERTIES:
            found = (
                _checked(each, example) if runs else Checked(each.name, "not tried", "there is no dry run")
            )
            runs &= not (each is PROPERTIES[0] and found.outcome == "failed")
            yield found


def _checked(each: Property, example: Example) -> Checked:
    if reason := each.left_out(example):
        return Checked(each.name, "left out", reason)
    try:
        each.holds(example)
    except (AssertionError, InputError, PluginError, Refused) as error:
        return Checked(each.name, "failed", str(error))
    except Exception as error:
        return Checked(each.name, "failed", raised(error))
    return Checked(each.name, "passed")
