"""Scenarios to report on, and how to run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from fedsim.cli.main import app

SMALL: dict[str, Any] = {
    "seed": 0,
    "name": "small",
    "trials": 2,
    "data": {"name": "synthetic", "rows": 120, "features": 3},
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 6, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": [1.0, 2.0, 4.0]},
    "runtime": "inprocess",
}


def simulate(folder: Path, tree: dict[str, Any]) -> Path:
    """Run a scenario; its run directory."""
    (folder / "scenario.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    out = folder / "run"
    result = CliRunner().invoke(app, ["simulate", str(folder / "scenario.yaml"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


HOSTILE = (
    "<script>window.pwned = 1</script>",
    '"><img src=http://example.com/x.png onerror=window.pwned=1>',
    "$\\frac$ & {{ 7 * 7 }}",
    "a-very-long-name-of-an-institute-without-a-single-space-" * 3,
    "\u75c5\u9662",
)
"""Names of silos that a page must show as they are."""
