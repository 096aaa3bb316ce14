"""Small scenarios to attack."""

from __future__ import annotations

from typing import Any

import pytest
from support.audit_settings import Attacked, setting_of

from fedsim.attacks.search import Attack, search
from fedsim.attacks.setting import Setting


@pytest.fixture
def attacked() -> Attacked:
    """A setting, and the attack on its last silo (the one with the largest epsilon)."""

    def made(**changes: Any) -> tuple[Setting, Attack]:
        setting = setting_of(**changes)
        return setting, search(setting, 2)

    return made
