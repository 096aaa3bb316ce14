"""What a command takes before it says anything, beside importing torch: `cold_start.py OUT`; writes JSON.

Seconds of processor time of a process and its children, [fedsim's], [torch's], taking turns: the quickstart
with one trial in process, from nothing to its page; and a field that does not exist.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = {
    "quickstart": (
        "-m",
        "fedsim",
        "simulate",
        "quickstart",
        "--set",
        "trials=1",
        "--set",
        "runtime=inprocess",
    ),
    "bad input": ("-m", "fedsim", "simulate", "quickstart", "--set", "trails=1"),
}
TORCH = ("-c", "import torch")
TURNS = 3


def seconds(*arguments: str) -> float:
    """Processor time of a Python process with these arguments."""
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Measure; the first turn, in which bytecode may be compiled, does not count."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = {}
    for name, command in COMMANDS.items():
        pairs = [(seconds(*command), seconds(*TORCH)) for _ in range(TURNS + 1)][1:]
        found[name] = [list(column) for column in zip(*pairs, strict=True)]
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
