"""`fedsim.simulate`, `load_run` and `price`: what goes in, what comes out, what is refused."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pytest
import yaml
from matplotlib.figure import Figure
from support.scenarios import SMALL

import fedsim
from fedsim.common.errors import PluginError
from fedsim.report.record import Measurement
from fedsim.report.texts import METRICS_TITLE, metrics_table, remarks, silo_table
from fedsim.simulation.failures import WorkerLost

QUICK: dict[str, Any] = {"trials": 2, "num_rounds": 3, "runtime": "inprocess", "baselines": False}


@pytest.fixture(scope="module")
def run() -> fedsim.Run:
    return fedsim.simulate(SMALL, excess_risk=True)


def test_a_name_a_path_a_mapping_and_a_scenario_are_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    models = [
        fedsim.simulate(given, trials=1).model
        for given in (SMALL, path, str(path), fedsim.Scenario.model_validate(SMALL))
    ]
    assert all((model == models[0]).all() for model in models)


def test_a_run_holds_metrics_ledger_silos_spend_and_models(run: fedsim.Run) -> None:
    assert len(run.metrics) == 2 * 2 * 7
    assert run.metrics["round"][:7] == list(range(7))
    assert len(run.ledger) == 2 * 3 * 6
    assert len(run.silos) == 2 * 2 * 3
    assert set(run.spend["silo"]) == {"silo-00", "silo-01", "silo-02"}
    assert run.model.shape == run.nonprivate_baseline.shape == (2, run.summary.dimension)
    assert not (run.model == run.nonprivate_baseline).any()
    assert [silo.epsilon_budget for silo in run.summary.privacy.silos] == [1.0, 2.0, 4.0]
    assert not run.interrupted
    assert run.failure is None
    assert "seed" not in yaml.safe_load(run.scenario)


def test_a_saved_run_is_read_back_as_it_was(run: fedsim.Run, tmp_path: Path) -> None:
    files = run.save(tmp_path / "run")
    assert {"report.html", "summary.json", "model.safetensors", "figures/"} <= set(files)
    again = fedsim.load_run(tmp_path / "run")
    assert again.summary == run.summary
    assert (again.model == run.model).all()
    assert (again.nonprivate_baseline == run.nonprivate_baseline).all()
    for table in ("metrics", "ledger", "silos", "spend"):
        assert getattr(again, table).to_pylist() == getattr(run, table).to_pylist()
    assert again.save(tmp_path / "copy") == files
    assert repr(again) == repr(run)
    with pytest.raises(fedsim.InputError, match="holds another run"):
        run.save(tmp_path / "run")


def test_nothing_is_written_unless_out_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fedsim.simulate(SMALL, trials=1)
    assert list(tmp_path.iterdir()) == []
    fedsim.simulate(SMALL, trials=1, out="here")
    assert fedsim.load_run("here").summary.trials.finished == 1


def test_nothing_is_printed_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    fedsim.simulate(SMALL, trials=1)
    assert capfd.readouterr() == ("", "")
    fedsim.simulate(SMALL, trials=1, progress=True)
    assert "14/14 trial 0 round 6 (non-private): test error" in capfd.readouterr().err


def test_a_function_is_told_every_measurement(run: fedsim.Run) -> None:
    told: list[Measurement] = []
    fedsim.simulate(SMALL, progress=told.append)
    assert len(told) == len(run.metrics)


class Cell:
    """What IPython would show in a notebook."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def display(self, shown: str, display_id: bool) -> Cell:
        self.states.append(shown)
        return self

    def update(self, shown: str) -> None:
        self.states.append(shown)


def test_a_notebook_shows_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, shell = Cell(), type("Shell", (), {"kernel": object()})()
    display = type(sys)("IPython.display")
    monkeypatch.setattr(display, "HTML", str, raising=False)
    monkeypatch.setattr(display, "display", cell.display, raising=False)
    ipython = type(sys)("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    fedsim.simulate(SMALL, trials=1)
    first, bar, *_, last = cell.states
    assert first == "starting"
    assert bar.startswith("<progress value=")
    assert "trial 0 round" in bar
    assert last == ""
    fedsim.simulate(SMALL, trials=1, progress=False)
    assert cell.states[-1] is last


def stop_after(count: int, error: BaseException) -> Any:
    def observe(measurement: Measurement) -> None:
        nonlocal count
        count -= 1
        if count == 0:
            raise error

    return observe


def test_a_lost_worker_says_why() -> None:
    with pytest.warns(UserWarning, match="the machine ran out of memory"):
        run = fedsim.simulate(SMALL, progress=stop_after(3, WorkerLost("the machine ran out of memory")))
    assert run.interrupted
    assert run.failure == "the machine ran out of memory"


@pytest.mark.parametrize("what", ["error", "loss", "excess_risk", "gradient_mapping_sq", "silos", "spend"])
def test_figures_are_matplotlibs_and_show_themselves(run: fedsim.Run, what: str) -> None:
    before = plt.get_backend()
    figure = run.plot(what)
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_backend() == before  # a caller's own figures are shown as before


def test_a_figure_has_its_axes_and_one_that_is_not_there_is_named(run: fedsim.Run) -> None:
    assert run.plot("error").axes[0].get_ylabel() == "test error"
    assert run.plot("excess_risk").axes[0].get_yscale() == "log"
    with pytest.raises(fedsim.InputError, match=r"plot: 'eror': did you mean"):
        run.plot("eror")
    with pytest.raises(fedsim.InputError, match="nothing to show"):
        fedsim.simulate(SMALL, trials=1, excess_risk=False).plot("excess_risk")


def test_html_holds_what_matters_and_escapes_it() -> None:
    page = fedsim.simulate(SMALL, trials=1, name="<b>mine</b>")._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;: test error" in page
    assert "<b>" not in page
    assert page.startswith('<img src="data:image/png;base64,')


def test_html_has_the_lines_and_the_tables_of_the_terminal(run: fedsim.Run) -> None:
    page, summary = run._repr_html_(), run.summary
    shown = [*summary.privacy.notices, *summary.warnings, *remarks(summary), METRICS_TITLE]
    rows = [*metrics_table(summary).rows, *silo_table(summary.privacy).rows]
    for text in [*shown, *(cell for row in rows for cell in row)]:
        assert escape(text) in page


@pytest.mark.parametrize(
    "error", [fedsim.InputError("a.b", 1, "two"), fedsim.Refused("no"), PluginError("it failed")]
)
def test_a_notebook_shows_an_error_as_one_line(error: Exception) -> None:
    """IPython calls the method in place of its traceback."""
    assert error._render_traceback_() == [f"{type(error).__name__}: {error}"]


def test_a_table_is_arrows_and_names_its_columns(run: fedsim.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.metrics.arrow.num_rows == len(run.metrics)
    assert run.metrics["error"] == [row["error"] for row in run.metrics]
    assert "28 rows" in run.metrics._repr_html_()
    with pytest.raises(fedsim.InputError, match=r"column: 'eror': did you mean 'error'"):
        run.metrics["eror"]
    with pytest.raises(fedsim.InputError, match=r"table: 'silo': did you mean 'silos'"):
        run.table("silo")


def test_a_table_shows_no_guarantee_below_what_it_is() -> None:
    values = {name: [1.00000049] for name in ("epsilon_colluding", "epsilon_spent", "delta", "error")}
    shown = fedsim.Table(pa.table({**values, "epsilon_attainable": [1.0000099]}))._repr_html_()
    assert re.findall("<td>(.*?)</td>", shown) == ["1.00001"] * 3 + ["1", "1"]


def test_a_table_becomes_a_data_frame(run: fedsim.Run) -> None:
    assert list(run.metrics.to_pandas().columns) == run.metrics.columns


@pytest.mark.parametrize(
    ("given", "changes", "words"),
    [
        (3, {}, "scenario: 3: must be the name of a shipped scenario, a path"),
        ("quikstart", {}, "is neither a file nor a shipped scenario; did you mean 'quickstart'"),
        ("no/such.yaml", {}, "cannot be read"),
        ("quickstart", {"epsilo": 2.0}, r"epsilo: 2.0: no such field; did you mean 'epsilon'"),
        ("quickstart", {"overrides": {"algorithm.step": 1}}, "scenario.algorithm.step: 1: left out, or"),
        ("breast_cancer", {"overrides": {"algorithm.step": 1}}, "scenario.algorithm.step: 1: unknown key"),
        ("quickstart", {"overrides": ["trials=3"]}, "overrides: .*must be a mapping such as"),
        ("quickstart", {"data": [[1.0]]}, r"data: 'list': must be fedsim.Frame\(table, target, silo\) or"),
        ("digits_sweep", {}, "is many runs; `fedsim sweep` makes them all"),
        ("quickstart", {"out": __file__}, "holds another run or other files"),
    ],
)
def test_what_is_wrong_is_named(given: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(fedsim.InputError, match=words):
        fedsim.simulate(given, **changes)


def test_a_budget_that_nothing_affords_is_refused() -> None:
    with pytest.raises(fedsim.Refused, match="silo"):
        fedsim.price("breast_cancer", {"privacy.calibration": "sigma"}, noise_multiplier=0.01)


def test_a_price_is_what_the_run_pays(run: fedsim.Run) -> None:
    cost = fedsim.price(SMALL, conversions=True)
    paid = {silo.name: silo.epsilon_guaranteed for silo in run.summary.privacy.silos}
    assert dict(zip(cost.silos["name"], cost.silos["epsilon_guaranteed"], strict=True)) == paid
    assert cost.conversions is not None
    assert len(cost.conversions.silos) == 3
    assert "accountant: exact Gaussian" in repr(cost)
    assert "silo-02" in cost._repr_html_()
    assert isinstance(cost.plot(), Figure)


def arrays(silo: bool = True) -> fedsim.Arrays:
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (120, 2))
    names = rng.choice(["north", "south"], 120) if silo else None
    return fedsim.Arrays(features, (features[:, 0] > 0).astype(int), names, ranges=(-1, 1))


def test_records_in_memory_take_the_place_of_data_and_partition() -> None:
    run = fedsim.simulate("quickstart", data=arrays(), epsilon=2.0, **QUICK)
    assert [silo.name for silo in run.summary.privacy.silos] == ["north", "south"]
    assert run.summary.dimension == 3


def test_a_partition_that_is_given_deals_records_in_memory() -> None:
    partition = {"partition": {"name": "iid", "num_partitions": 3}}
    for data in (arrays(), arrays(silo=False)):
        cost = fedsim.price("quickstart", partition, data=data, epsilon=2.0)
        assert cost.silos["name"] == ["silo-00", "silo-01", "silo-02"]


@pytest.mark.slow
def test_records_in_memory_travel_to_ray() -> None:
    runs = [
        fedsim.simulate("quickstart", QUICK | {"runtime": runtime}, data=arrays(), epsilon=2.0)
        for runtime in ("inprocess", "ray")
    ]
    assert (runs[0].model == runs[1].model).all()
