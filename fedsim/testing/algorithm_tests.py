"""A base class for pytest: one test for each property."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import SkipTest

from fedsim.testing.example import Example
from fedsim.testing.properties import PROPERTIES, Property


class AlgorithmTests:
    """Derive a class whose name begins with Test, and give it an `example`."""

    example: ClassVar[Example]


def _test(check: Property) -> Any:
    def test(self: AlgorithmTests) -> None:
        if reason := check.left_out(self.example):
            raise SkipTest(reason)
        check.holds(self.example)

    test.__doc__ = check.name
    return test


for _property in PROPERTIES:
    setattr(
        AlgorithmTests,
        "test_" + "_".join(_property.name.replace(":", "").replace(",", "").split()),
        _test(_property),
    )
