"""A metric that the test records do not define ends no run: it is null, and a line says so."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim.measure.evaluator import Evaluator


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_whose_error_is_no_number_is_saved_and_says_so(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Evaluator.__call__

    def undefined(self: Evaluator, *args: object, **more: object) -> object:
        found = real(self, *args, **more)  # type: ignore[arg-type]
        return type(found)(value, *found[1:]) if hasattr(found, "_fields") else (value, *found[1:])

    monkeypatch.setattr(Evaluator, "__call__", undefined)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fedsim.simulate(
            "quickstart", trials=1, num_rounds=2, runtime="inprocess", progress=True, out=tmp_path / "run"
        )
    assert run.summary.metrics.error is None
    assert run.summary.metrics.loss is not None
    (line,) = [line for line in run.summary.warnings if "not a number" in line]
    assert "test error is not a number in 6 of 6 evaluations (first in trial 0, round 0)" in line
    read = fedsim.load_run(tmp_path / "run")
    assert set(read.metrics["error"]) == {None}
    assert read.summary.warnings == run.summary.warnings
    assert "not a number" in (tmp_path / "run" / "report.html").read_text()


def test_targets_all_alike_end_no_regression(tmp_path: Path) -> None:
    """The error is relative to the targets' spread, of which there is none."""
    rng = np.random.default_rng(0)
    records = fedsim.Arrays(rng.normal(size=(60, 3)), np.ones(60), np.repeat(["a", "b", "c"], 20))
    run = fedsim.simulate(
        {
            "name": "alike",
            "data": {"name": "synthetic"},
            "partition": {"name": "iid", "num_partitions": 3},
            "problem": "linear_regression",
            "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0},
            "privacy": {"epsilon": 1.0},
            "runtime": "inprocess",
        },
        data=records,
        out=tmp_path / "run",
        progress=False,
    )
    assert len(run.model) == 1
    assert (tmp_path / "run" / "report.html").exists()
