"""Faults that are known: each is still there, and this test says so when one is mended."""

import pytest

from crossings import test_doors, test_every_evaluation, test_every_release, test_other_operations, test_words
from crossings.walk import KNOWN

WALKS = {
    "doors": test_doors,
    "release": test_every_release,
    "evaluation": test_every_evaluation,
    "operation": test_other_operations,
    "words": test_words,
}


@pytest.mark.parametrize(
    "known",
    [pytest.param(own, marks=pytest.mark.xfail(strict=True, reason=own["reason"])) for own in KNOWN],
    ids=lambda own: own["reason"].replace(" ", "-")[:50],
)
def test_a_known_fault_is_mended(known):
    faults = WALKS[known["walk"]].faults_of(known["example"])
    assert not [fault for fault in faults if known["fault"] in fault]
