"""Runs the benchmark's scripts, each in a process of its own with one thread, and watches their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS = ROOT / ".venv-peers"
REQUIREMENTS = {"torch": version("torch").split("+")[0], "numpy": version("numpy")} | {
    "flwr[simulation]": "1.41.0",
    "pfl": "0.6.0",
    "opacus": "1.6.0",
}
_LOOK = 0.3  # seconds between two looks at the memory


class Skipped(Exception):
    """A script could not run; says why in a line."""


def peers_python() -> Path:
    """The peers' interpreter; makes its environment the first time.

    Raises:
        Skipped: the peers cannot be installed.
    """
    python = PEERS / "bin" / "python"
    wanted = {name.partition("[")[0]: pinned for name, pinned in REQUIREMENTS.items()}
    check = (
        f"import importlib.metadata as m; assert all(m.version(n).startswith(p) for n, p in {wanted}.items())"
    )
    if python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
        return python
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
    names = [f"{name}=={pinned}" for name, pinned in REQUIREMENTS.items()]
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"the peers cannot be installed: {_last_line(done.stderr)}")
    return python


def measure(python: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What the script wrote, and `peak_mib`, the most that it and its children held.

    Raises:
        Skipped: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with log.open("w") as stream:
            process = subprocess.Popen(
                [python, HERE / script, *arguments, out],
                env=os.environ | one,
                cwd=folder,
                stdout=stream,
                stderr=stream,
            )
            peak = _watched(process)
        if process.returncode:
            raise Skipped(f"{script} failed: {_last_line(log.read_text(errors='replace'))}")
        written: dict[str, Any] = json.loads(out.read_text())
    return {"peak_mib": peak, **written}


def _watched(process: subprocess.Popen[bytes]) -> float:
    """Wait for its end; the largest memory of its tree in MiB, shared pages counted once where known."""
    peak, root = 0.0, psutil.Process(process.pid)
    while process.poll() is None:
        held = 0
        with suppress(psutil.Error):
            for each in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    held += getattr(info := each.memory_full_info(), "pss", info.rss)
        peak = max(peak, held / 2**20)
        time.sleep(_LOOK)
    return peak


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
