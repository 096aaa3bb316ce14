"""A sweep's page: one self-contained HTML file, the privacy statement first, and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedsim.common.errors import InputError
from fedsim.privacy.rounding import shown_up
from fedsim.report.page import PAGE, named, publish, template
from fedsim.report.sweep_figure import draw
from fedsim.results.read import scenario_of
from fedsim.results.silo_table import Table, given, plain
from fedsim.results.summary import read_json, validated
from fedsim.sweeps.naming import title
from fedsim.sweeps.series import abscissa, interval_note, series, x_label
from fedsim.sweeps.summary import FORMAT, SHARED

_AGAIN = "run the sweep again with this version; its finished cells are kept"
_FACTS = ("unit", "adjacency", "guarantee", "mechanism", "calibration", "sampler", "accountant", "theorem")
_SPENT = ("epsilon_tuning", "epsilon_run", "epsilon_total")


class SweepSummary(BaseModel):
    """The part of a sweep's `summary.json` that the page shows; see `fedsim.sweeps.summary`."""

    scenario: str
    trials: int
    error: str | None
    wall_seconds: float
    runs: dict[str, int]
    varied: list[str]
    combinations: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    tuning: dict[str, Any] | None
    privacy: dict[str, Any]
    code: dict[str, str]


def write_page(directory: Path) -> Path:
    """Write report.html and the figure into a sweep's directory; what was there is replaced.

    Raises:
        InputError: it is no finished sweep of this version, or cannot be written.
    """
    sweep = _read(directory / "summary.json")
    scenario, description = scenario_of(directory / "scenario.yaml")

    def fill(folder: Path) -> None:
        (folder / PAGE).write_text(_render(sweep, scenario, description, folder), encoding="utf-8")

    return publish(directory, fill)


def figure_name(summary: Mapping[str, Any]) -> str:
    """`error_vs_epsilon`, or by the last part of whatever field is on the axis."""
    field = abscissa(summary)
    return f"error_vs_{field.split('.')[-1]}" if field else "error"


def _read(path: Path) -> SweepSummary:
    if not path.exists():
        raise InputError("RUN", str(path.parent), "its sweep has not finished; run it to the end")
    tree = read_json(path, _AGAIN)
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        found = tree.get("format") if isinstance(tree, dict) else None
        raise InputError("RUN", str(path), f"format {found!r}, this version reads {FORMAT!r}; {_AGAIN}")
    return validated(SweepSummary, tree, path, _AGAIN)


def _render(sweep: SweepSummary, scenario: str, description: str, folder: Path) -> str:
    return template("sweep.html").render(
        title=sweep.scenario,
        description=description,
        sweep=sweep,
        facts=_facts(sweep.privacy),
        costs=_costs(sweep),
        shared=SHARED in sweep.privacy.get("not_private", []),
        ledger=_ledger(sweep.privacy.get("tuning")),
        figure=_figure(sweep, folder),
        errors=_errors(sweep),
        candidates=_candidates(sweep.tuning),
        failures=_failures(sweep),
        environment=_environment(sweep),
        scenario=scenario,
    )


def _facts(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    said = [(name, privacy.get(name) or "none") for name in _FACTS if name != "theorem" or privacy.get(name)]
    return [
        (name.capitalize(), ", ".join(value) if isinstance(value, list) else value) for name, value in said
    ]


def _costs(sweep: SweepSummary) -> Table:
    """One row for each combination that has a mechanism and was run."""
    columns = ["combination", "budget epsilon", "guaranteed epsilon (true)", "noise multiplier", "silo"]
    rows = [
        [
            title(one["varied"], True),
            given(one["epsilon_budget"]),
            shown_up(one["epsilon_guaranteed"]),
            plain(one["noise_multiplier"]),
            str(one["costliest_silo"]),
        ]
        for one in sweep.combinations
        if one["private"] and one["trials"]
    ]
    return Table("For replacing one record; the largest over trials.", columns, rows)


def _ledger(tuning: Mapping[str, Any] | None) -> Table:
    """What private tuning cost, beside the reported run, at the silo where each is largest."""
    if tuning is None:
        return Table("", [], [])
    rows = []
    for one in tuning["combinations"]:
        largest = [_largest([silo[name] for silo in one["silos"]]) for name in _SPENT]
        rows.append([title(one["varied"], True), *(shown_up(value) for value in largest)])
    columns = ["combination", "tuning", "reported run", "together"]
    return Table(f"Epsilon, largest over silos. {tuning['guarantee'].capitalize()}.", columns, rows)


def _largest(values: list[float | None]) -> float | None:
    """None is infinity, or nothing reported."""
    return None if None in values else max(value for value in values if value is not None)


def _figure(sweep: SweepSummary, folder: Path) -> str:
    summary = sweep.model_dump()
    x = abscissa(summary)
    trials = [one["trials"] for one in sweep.combinations if one["trials"]]
    tuned = (sweep.privacy.get("tuning") or {}).get("note", "")
    drawn = draw(
        series(summary, x),
        x_label(x),
        "test error",
        sweep.scenario,
        "; ".join(filter(None, [interval_note(trials), tuned])),
        folder,
        figure_name(summary),
    )
    return named(drawn, f"Test error against {x_label(x)}" if x else "Test error")


def _errors(sweep: SweepSummary) -> Table:
    chosen = list(dict.fromkeys(field for one in sweep.combinations for field in one["chosen"] or {}))
    columns = ["combination", *(f"chosen {field.split('.')[-1]}" for field in chosen), "test error", "trials"]
    rows = []
    for one in sweep.combinations:
        error, picked = "failed", one["chosen"] or {}
        if one["test_error"] is not None:
            low, high = one["test_error_interval90"]
            error = f"{one['test_error']:.4f} [{low:.4f}, {high:.4f}]"
        values = [str(picked.get(field, "-")) for field in chosen]
        rows.append([title(one["varied"], one["private"]), *values, error, str(one["trials"])])
    return Table("", columns, rows)


def _candidates(tuning: Mapping[str, Any] | None) -> Table:
    if tuning is None:
        return Table("", [], [])
    criterion = tuning["criterion"]
    rows = []
    for one in tuning["candidates"]:
        value = "failed" if one[criterion] is None else f"{one[criterion]:.5g}"
        mark = "chosen" if one["selected"] else ""
        rows.append([title(one["varied"], one["private"]), title(one["candidate"], True), value, mark])
    caption = f"Mean {criterion} over {tuning['repetitions']} runs."
    return Table(caption, ["combination", "candidate", criterion, ""], rows)


def _failures(sweep: SweepSummary) -> Table:
    rows = [
        [title(one["varied"] | one["chosen"], True), str(one["trial"]), one["kind"], one["message"]]
        for one in sweep.failures
    ]
    return Table("", ["cell", "trial", "kind", "message"], rows)


def _environment(sweep: SweepSummary) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in sweep.code.items())
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sweep.runs.items())
    return [("Cells", counts), ("Wall time", f"{sweep.wall_seconds:,.1f} s"), ("Code", versions)]
