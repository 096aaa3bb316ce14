"""Small scenarios to attack."""

import json
from functools import cache

import pytest
from support.audit_settings import setting_of

from fedsim.testing.attacks.search import Attack, search
from fedsim.testing.attacks.setting import Setting


@pytest.fixture
def attacked():
    """A setting, and the attack on its last silo (the one with the largest epsilon)."""

    return lambda **changes: _attacked(json.dumps(changes, sort_keys=True))


@cache
def _attacked(changes: str) -> tuple[Setting, Attack]:
    """Made once for equal changes, before a test breaks anything."""
    setting = setting_of(**json.loads(changes))
    return setting, search(setting, 2)
