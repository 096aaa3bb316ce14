"""fedsim beside its peers, one table: `make bench-peers`.

Every row is a ratio of two times measured in this run, each in a process of its own with one thread.
Peers are installed into `.venv-peers`, which this script makes; the product never sees them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers"
REQUIREMENTS = ["torch==2.13.0", "flwr[simulation]==1.41.0", "pfl==0.6.0", "numpy==2.4.6"]


class Time(NamedTuple):
    """One measurement: milliseconds a round, seconds to the first round, peak memory in MiB if known."""

    milliseconds: float
    startup: float
    peak_mib: float | None


def peers_python() -> Path:
    """The peers' interpreter; installs them the first time."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


def measure(python: Path, script: str, *arguments: str) -> Time:
    """Run one of the scripts in `peers/` and read what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [python, HERE / "peers" / script, *arguments, out]
        subprocess.run(
            command,
            check=True,
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        read = json.loads(out.read_text())
    return Time(read["milliseconds"], read["startup"], read.get("peak_mib"))


def main() -> None:
    """Measure everything once and print the table."""
    ours, theirs = Path(sys.executable), peers_python()
    inprocess = measure(ours, "fedsim_rounds.py", "logistic", "inprocess")
    on_ray = measure(ours, "fedsim_rounds.py", "logistic", "ray")
    softmax = measure(ours, "fedsim_rounds.py", "softmax", "inprocess")
    flower = measure(theirs, "flower_rounds.py")
    rows = [
        ("fedsim, in-process", inprocess, None),
        ("fedsim, Ray", on_ray, None),
        ("(b) Flower simulation engine", flower, flower.milliseconds / on_ray.milliseconds),
        ("(d) NumPy loop over silos and records", loop := measure(theirs, "numpy_rounds.py"), None),
        ("fedsim, softmax 784 x 10", softmax, None),
        ("(e) pfl, softmax 784 x 10", pfl := measure(theirs, "pfl_rounds.py"), None),
    ]
    ratios = {3: loop.milliseconds / inprocess.milliseconds, 5: pfl.milliseconds / softmax.milliseconds}
    table = Table("", "ms a round", "times fedsim's", "start-up s", "peak MiB")
    for i, (name, time, ratio) in enumerate(rows):
        ratio = ratios.get(i, ratio)
        peak = "" if time.peak_mib is None else f"{time.peak_mib:.0f}"
        table.add_row(
            name, f"{time.milliseconds:.2f}", f"{ratio:.1f}" if ratio else "", f"{time.startup:.1f}", peak
        )
    Console().print(table)


if __name__ == "__main__":
    main()
