"""A small scenario as plain mappings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.sweep_helpers import BASE


@pytest.fixture
def base() -> dict[str, Any]:
    return copy.deepcopy(BASE)
