"""A small scenario as plain mappings."""

import copy
from typing import Any

import pytest
from support.scenarios import BASE


@pytest.fixture
def base() -> dict[str, Any]:
    return copy.deepcopy(BASE)
