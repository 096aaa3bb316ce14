"""fedsim beside a bare loop and its peers, one table, and the runs before it: `make bench`.

Every row is a ratio of times measured in this run. What can share a process takes turns in it, the others in
processes of their own, again and again, so that a busy machine shows as spread: medians, and in brackets the
smallest and largest ratio of a pair. Start-up and memory are fedsim's / the other's. Without the peers (no
network) their rows say why they are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from document import table, where, write
from processes import Skipped, measure, peers_python
from rich.console import Console
from rich.table import Table

HEAD = ("against", "fedsim ms", "other ms", "ratio [min, max]", "target", "met", "start-up s", "peak MiB")
SCRIPTS = {
    "bare": (False, "round_cost.py"),
    "folded": (False, "folded_sweep.py"),
    "cold": (False, "cold_start.py"),
    "logistic inprocess": (False, "peers/fedsim_rounds.py", "logistic", "inprocess"),
    "logistic ray": (False, "peers/fedsim_rounds.py", "logistic", "ray"),
    "numpy": (False, "peers/numpy_rounds.py"),
    "flower": (True, "peers/flower_rounds.py"),
    "softmax inprocess": (False, "peers/fedsim_rounds.py", "softmax", "inprocess"),
    "aggregate inprocess": (False, "peers/fedsim_rounds.py", "aggregate", "inprocess"),
    "aggregate ray": (False, "peers/fedsim_rounds.py", "aggregate", "ray"),
    "softmax ray": (False, "peers/fedsim_rounds.py", "softmax", "ray"),
    "pfl": (True, "peers/pfl_rounds.py", "plain"),
    "pfl private": (True, "peers/pfl_rounds.py", "private"),
    "isolated": (False, "isolated_round.py"),
    "statistics": (False, "statistics_cost.py"),
    "parts": (False, "part_price.py"),
    "public": (False, "public_round.py"),
    "opacus": (True, "peers/opacus_gradient.py"),
}
"""Name: (whether it runs among the peers, script, arguments)."""

TIME = "milliseconds"
RUNS, KEPT = Path(__file__).parent / "runs.json", 5
"""Where the ratios of the last written runs are kept, on whatever machine, and how many of them."""

Runs = list[dict[str, Any]] | str
"""What each repetition wrote, or why there is none."""


@dataclass(frozen=True)
class Row:
    """Times in pairs, ratio target ("at most" 1.3 of ours over theirs, "at least" 8 of theirs over ours)."""

    name: str
    ours: Sequence[float]
    theirs: Sequence[float]
    at_most: float | None = None
    at_least: float | None = None
    startup: tuple[float, float] | None = None
    peak: tuple[float, float] | None = None

    def cells(self) -> list[str]:
        """The row's text, in the order of `HEAD`."""
        pairs = list(zip(self.ours, self.theirs, strict=True))
        ratios = [a / b if self.at_most else b / a for a, b in pairs]
        typical, low, high = median(ratios), min(ratios), max(ratios)
        if self.at_most:
            target, met = f"<= {self.at_most:g}", typical <= self.at_most
        else:
            assert self.at_least is not None
            target, met = f">= {self.at_least:g}", typical >= self.at_least
        return [
            self.name,
            f"{median(self.ours):.2f}",
            f"{median(self.theirs):.2f}",
            f"{typical:.2f} [{low:.2f}, {high:.2f}]",
            target,
            "yes" if met else "no",
            "" if self.startup is None else " / ".join(f"{value:.1f}" for value in self.startup),
            "" if self.peak is None else " / ".join(f"{value:.0f}" for value in self.peak),
        ]


def run(repetitions: int) -> dict[str, Runs]:
    """Every script in turn, `repetitions` times."""
    console = Console(stderr=True)
    found: dict[str, Runs] = {name: [] for name in SCRIPTS}
    try:
        peers: Path | str = peers_python()
    except Skipped as reason:
        peers = str(reason)
    for repetition in range(repetitions):
        for name, (among_peers, script, *arguments) in SCRIPTS.items():
            runs = found[name]
            if isinstance(runs, str):
                continue
            console.print(f"{repetition + 1}/{repetitions} {name}", highlight=False)
            try:
                if among_peers and isinstance(peers, str):
                    raise Skipped(peers)
                runs.append(measure(Path(peers) if among_peers else Path(sys.executable), script, *arguments))
            except Skipped as reason:
                found[name] = str(reason)
    return found


def rows(found: dict[str, Runs]) -> list[list[str]]:
    """The table's rows, in its order."""
    return [
        *_bare(found),
        *_rows("60 runs side by side", [found["folded"]], _folded),
        *_rows("cold start", [found["cold"]], _cold),
        *_pair(found, "(b) Flower", "logistic", "flower", 150),
        *_networks(found),
        *_pair(found, "(d) NumPy loops", "logistic", "numpy", 20),
        *_pair(found, "(e) pfl", "softmax", "pfl", 5),
        *_pair(found, "(e) pfl with noise", "softmax", "pfl private", 8),
        *_pair(found, "(e) pfl, noise drawn at once", "aggregate", "pfl", 8),
        *_pair(found, "(e) pfl with noise, drawn at once", "aggregate", "pfl private", 15),
        *_isolated(found),
        *_statistics(found),
        *_rows("price of parts", [found["parts"]], _priced),
        *_rows("a round with public records", [found["public"]], _public),
    ]


def _bare(found: dict[str, Runs]) -> list[list[str]]:
    def made(runs: list[dict[str, Any]]) -> list[Row]:
        made = [
            Row(f"(a) {name}, {kind}", *(_joined(runs, kind, who) for who in (0, other)), at_most=most)
            for name, other, targets in (("bare loop", 1, (1.4, 1.6)), ("bare torch loop", 2, (1.0, 1.2)))
            for kind, most in zip(("float64", "float32", "local SGD"), (*targets, 1.4), strict=True)
        ]
        on_ray = found["logistic ray"]
        if isinstance(on_ray, str):
            return made
        loop = [median(run["float64"][1]) for run in runs]
        return [*made, Row("(a) bare loop, float64; on Ray", _series(on_ray, TIME), loop, at_most=1.6)]

    return _rows("(a) bare torch loop", [found["bare"]], made)


def _folded(runs: list[dict[str, Any]]) -> list[Row]:
    times = (_joined(runs, TIME, who) for who in (0, 1))
    return [Row("(a) a run of 60 side by side, against a bare loop each", *times, at_most=0.5)]


def _cold(runs: list[dict[str, Any]]) -> list[Row]:
    """Processor time of whole commands; importing torch takes some 2 s."""
    return [
        Row(f"{name}, from nothing, against importing torch", *_in_ms(runs, name), at_most=most)
        for name, most in {"quickstart": 2.0, "bad input": 0.5}.items()
    ]


def _priced(runs: list[dict[str, Any]]) -> list[Row]:
    times = (_joined(runs, "price", who) for who in (0, 1))
    return [Row("price of 1,000 rounds on 10 parts, against 5 ms", *times, at_most=1.0)]


def _in_ms(runs: list[dict[str, Any]], field: str) -> list[list[float]]:
    return [[seconds * 1e3 for seconds in _joined(runs, field, who)] for who in (0, 1)]


def _pair(found: dict[str, Runs], name: str, ours: str, theirs: str, target: float) -> list[list[str]]:
    """One row in-process and one on Ray against the same peer."""
    return [
        *_against(found, f"{name}; in-process", f"{ours} inprocess", theirs, target),
        *_against(found, f"{name}; on Ray", f"{ours} ray", theirs, target),
    ]


def _against(found: dict[str, Runs], name: str, ours: str, theirs: str, target: float) -> list[list[str]]:
    def made(own: list[dict[str, Any]], peers: list[dict[str, Any]]) -> list[Row]:
        startup, peak = (
            (median(_series(own, field)), median(_series(peers, field))) for field in ("startup", "peak_mib")
        )
        times = _series(own, TIME), _series(peers, TIME)
        return [Row(name, *times, at_least=target, startup=startup, peak=peak)]

    return _rows(name, [found[ours], found[theirs]], made)


def _networks(found: dict[str, Runs]) -> list[list[str]]:
    def made(runs: list[dict[str, Any]]) -> list[Row]:
        return [
            _network(runs, "(c) Opacus, MLP, hooks", "mlp float32", "hooks", at_least=1),
            _network(runs, "(c) Opacus, MLP, ghost clipping", "mlp float32", "ghost", at_least=1),
            _network(runs, "(c) Opacus, CNN, hooks", "cnn float32", "hooks", at_least=1.5),
            _network(runs, "(c) Opacus, CNN, ghost clipping", "cnn float32", "ghost", at_least=1.5),
            _network(
                runs, "(c) Opacus, a module of one's own, hooks", "residual float32", "hooks", at_most=4
            ),
            _network(runs, "MLP, unclipped pass, float64", "mlp float64", "plain", at_most=2),
            _network(runs, "MLP, unclipped pass, float32", "mlp float32", "plain", at_most=2),
        ]

    return _rows("(c) Opacus", [found["opacus"]], made)


def _network(runs: list[dict[str, Any]], name: str, network: str, way: str, **target: float) -> Row:
    own = [run[network] for run in runs]
    times = (_joined(own, TIME, who) for who in ("fedsim", way))
    peak = own[0]["peak_mib"]
    return Row(name, *times, peak=(peak["fedsim"], peak[way]), **target)


def _isolated(found: dict[str, Runs]) -> list[list[str]]:
    """An isolated algorithm against the same in process."""
    name = "a plug-in algorithm, isolated against in process"

    def made(runs: list[dict[str, Any]]) -> list[Row]:
        return [Row(name, *(_joined(runs, TIME, who) for who in (0, 1)), at_most=1.5)]

    return _rows(name, [found["isolated"]], made)


_AT_MOST = {"second_moment": 5.0, "minimiser": 50.0, "longer": 1.0}
"""Rounds of gradients that a round of a statistic may take: n d^2 multiplications, and 50 gradients; what is
asked beside each gradient may take one.
"""


def _statistics(found: dict[str, Runs]) -> list[list[str]]:
    """A round of each statistic against one of gradients."""

    def made(runs: list[dict[str, Any]]) -> list[Row]:
        def times(name: str) -> list[float]:
            return [time for run in runs for time in run[name]]

        label = "a round of {}, against one of gradients".format
        return [
            Row(label(name), times(name), times("gradient"), at_most=_AT_MOST.get(name, 3.0))
            for name in runs[0]
            if name not in ("gradient", "peak_mib")
        ]

    return _rows("a round of each statistic", [found["statistics"]], made)


_PUBLIC = {"5 silos": 2.0, "1,000 silos": 1.1}
"""Rounds without them that a round with 10,000 public records may take: few silos have fewer themselves."""


def _public(runs: list[dict[str, Any]]) -> list[Row]:
    return [
        Row(f"10,000 public records, {name}", *(_joined(runs, name, who) for who in (0, 1)), at_most=most)
        for name, most in _PUBLIC.items()
    ]


def _series(runs: list[dict[str, Any]], field: str) -> list[float]:
    return [run[field] for run in runs]


def _joined(runs: list[dict[str, Any]], field: str, who: int | str) -> list[float]:
    """The times that each repetition measured within one process, one after another."""
    return [time for run in runs for time in run[field][who]]


def _rows(name: str, runs: Sequence[Runs], made: Callable[..., list[Row]]) -> list[list[str]]:
    reasons = [each for each in runs if isinstance(each, str)]
    if reasons:
        return [[name, "", "", f"skipped: {reasons[0]}", "", "", "", ""]]
    return [row.cells() for row in made(*runs)]


def remembered(measured: Sequence[Sequence[str]]) -> str:
    """The last runs, this one included, as a table: median ratios by run, and which machine each was on."""
    ratios = {cells[0]: cells[3] for cells in measured if cells[1]}
    runs = [*(json.loads(RUNS.read_text()) if RUNS.exists() else []), {"where": where(), "ratios": ratios}]
    RUNS.write_text(json.dumps(runs[-KEPT:], indent=1) + "\n", encoding="utf-8")
    head = ("ratio", *(f"run {number}" for number in range(1, len(runs[-KEPT:]) + 1)))
    rows = [[name, *(run["ratios"].get(name, "") for run in runs[-KEPT:])] for name in ratios]
    machines = [f"{number}. {run['where']}" for number, run in enumerate(runs[-KEPT:], 1)]
    return "\n".join(machines) + f"\n\n{table(head, rows)}"


def main() -> None:
    """Measure, print, and with `--write` put the table into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1, help="how many tables to measure, one after another")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    chosen = parser.parse_args()
    for _ in range(chosen.runs):
        measured = rows(run(chosen.repetitions))
        shown = Table(*HEAD)
        for cells in measured:
            shown.add_row(*cells)
        console = Console()
        console.width = max(console.width, 110)
        console.print(shown)
        if chosen.write:
            write("bench", f"{where()}\n\n{table(HEAD, measured)}")
            write("bench runs", remembered(measured))


if __name__ == "__main__":
    main()
