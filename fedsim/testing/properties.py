"""The table of properties: names, and functions that raise where one fails; and for pytest a test of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from unittest import SkipTest

from fedsim.protocol.batch import FULL
from fedsim.testing import accounts, convergence, places
from fedsim.testing.convergence import CASES, SIZES, case_of
from fedsim.testing.federations import Example, plan_of


@dataclass(frozen=True)
class Property:
    """A property of every algorithm."""

    name: str  # of the property, as `Example.left_out` has it
    holds: Callable[[Example], object]  # raises AssertionError, Refused or InputError where it does not

    def left_out(self, example: Example) -> str | None:
        """Why it need not hold of this example; None where it must."""
        return example.left_out.get(self.name) or example.left_out.get(self.case)

    @property
    def case(self) -> str:
        """The case of a property with several cases: the name from the colon on."""
        return self.name.rpartition(": ")[2]


PROPERTIES: tuple[Property, ...] = (
    # the plan is found without data: see `fedsim.protocol.dryrun`
    Property("dry run", lambda example: plan_of(example.short(FULL), case_of("linear").problem, SIZES)),
    *(Property(f"reaches the optimum: {case}", partial(convergence.reaches, name=case)) for case in CASES),
    *(Property(f"stays at the optimum: {case}", partial(convergence.keeps, name=case)) for case in CASES),
    Property("messages may be scaled", convergence.may_be_scaled),
    Property("ledger is plan, all records", partial(accounts.ledger_is_plan, batch=FULL)),
    Property("ledger is plan, fresh batches", partial(accounts.ledger_is_plan, batch=accounts.TWELFTH)),
    Property("a silo pays for its own rounds", accounts.pays_for_its_own_rounds),
    Property("missed rounds are not spent", accounts.missed_rounds_are_not_spent),
    Property("asks what it planned", accounts.asks_what_it_planned),
    Property("is a function of its seed", places.is_a_function_of_its_seed),
    Property("same for one silo and a cohort", places.is_answered_row_by_row),
    Property("same on one host and on several", places.is_the_same_on_other_hosts),
    Property("memory of what was given only", places.remembers_what_it_was_given),
    Property("linear where it says so", places.is_linear_where_it_says_so),
)
"""In the order in which they are checked."""


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
    _name = "_".join(_property.name.replace(":", "").replace(",", "").split())
    setattr(AlgorithmTests, f"test_{_name}", _test(_property))
