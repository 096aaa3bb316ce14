"""Kills and losses of power, few of them: see `tests/faults/kill_ledger.py`, the command that does many."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(__file__).parents[1] / "faults" / "kill_ledger.py"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="records writes with a library in C")


def _killed(*options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([sys.executable, COMMAND, *options], stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("kills", [24, pytest.param(400, marks=pytest.mark.slow)])
def test_what_had_left_is_in_the_ledger_after_any_kill_and_loss_of_power(kills):
    code, found = _killed("--kills", str(kills), "--power-losses", str(kills // 2))
    assert (code, found["violations"]) == (0, [])
    assert (found["kills"], found["with loss of power"]) == (kills, kills // 2)
    assert found["rounds answered"] > 0


def test_a_ledger_that_does_not_wait_for_the_disk_is_found_out():
    """Each loss finds it in 20 of 24 cases: 40 of them in all but 1e-30."""
    code, found = _killed("--kills", "40", "--power-losses", "40", "--careless")  # it ends at the first
    assert code == 1
    assert "with loss of power" in found["violations"][0]
    assert "damaged" in found["violations"][0]
