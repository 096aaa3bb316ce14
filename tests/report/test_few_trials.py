"""Few trials are shown one by one; what is equal is drawn once; what the clip takes has a figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedsim.report import plots
from fedsim.report.remarks import result_line
from fedsim.results.run_directory import read
from fedsim.results.summarise import interval90


def test_two_trials_are_points_and_no_band(small_run: Path) -> None:
    run = read(small_run)
    figure = plots.against_rounds(run, "error")
    assert figure is not None
    axes = figure.axes[0]
    assert not axes.collections  # no band
    assert sum(line.get_marker() == "." for line in axes.lines) == 4  # of two trials, private and not
    assert "90 %" not in result_line(run.summary)
    assert "in brackets from the lowest to the highest" in result_line(run.summary)
    assert "90 %" not in (small_run / "report.html").read_text()


def test_of_few_trials_an_interval_is_all_of_them() -> None:
    assert interval90(np.array([0.3, 0.1, 0.2])) == (0.1, 0.3)
    low, high = interval90(np.arange(101) / 100) or (0, 0)
    assert (low, high) == pytest.approx((0.05, 0.95))


def test_equal_curves_of_spend_are_drawn_once_with_their_number(small_run: Path) -> None:
    rows = [
        {"silo": f"silo-{k}", "round": r, "epsilon_spent": scale * r / 5, "budget": 4.0}
        for k, scale in enumerate((1.0, 1.0001, 3.0, 1.0))
        for r in (0, 5)
    ]
    run = replace(read(small_run), load_table=lambda _: pa.Table.from_pylist(rows), _tables={})
    figure = plots.spend(run)
    assert figure is not None
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"3 silos, as silo-0", "silo-2", "budget"}


def test_what_the_clip_takes_is_drawn_between_none_and_all(small_run: Path) -> None:
    figure = plots.clipping(read(small_run))
    assert figure is not None
    names = {str(line.get_label()): np.asarray(line.get_ydata()) for line in figure.axes[0].lines}
    assert 0 <= names["share clipped"].min() <= names["share clipped"].max() <= 1
    assert figure.axes[0].get_ylim()[0] == 0
    assert "query for it" in (small_run / "report.html").read_text()
