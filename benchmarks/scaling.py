"""Rounds per second and memory against silos, records, features and Ray hosts: `make scaling`.

Writes the tables into docs/performance.md and draws docs/images/scaling.svg. Every point runs in a process of
its own; the figure's numbers are those of the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from document import table, where, write
from processes import measure
from rich.console import Console
from scaling_figure import Curve, draw

SILOS = [(10, 400), (100, 400), (1_000, 100), (10_000, 20), (100_000, 8), (1_000_000, 8)]
RECORDS = [(100, 400), (1_000, 200), (10_000, 30), (40_000, 15)]
FEATURES = [(10, 400), (100, 200), (1_000, 30), (4_000, 10)]
"""(size, rounds): enough for a second or so each."""

DRAWN = [(1_000, 200), (1_000_000, 60)]
"""(silos, rounds) of which 100 silos each take part."""

HOSTED = [(1_000, 400), (4_000, 200), (16_000, 60)]
SAMPLERS = {"full": None, "fresh": 0.02, "subsample": 0.1, "poisson": 0.1}

Point = dict[str, Any]


def run(kind: str, **point: object) -> Point:
    """The point with its measurements."""
    Console(stderr=True).print(kind, point, highlight=False)
    return point | measure(Path(sys.executable), "scaling_point.py", json.dumps({"kind": kind, **point}))


def growth() -> dict[str, list[Point]]:
    """One size at a time grows, all silos in one process."""
    small = {"records": 20, "features": 10}
    return {
        "silos": [run("process", silos=n, rounds=r, **small) for n, r in SILOS],
        "records": [run("process", silos=25, records=n, features=10, rounds=r) for n, r in RECORDS],
        "features": [run("process", silos=25, records=320, features=n, rounds=r) for n, r in FEATURES],
    }


def drawn_table() -> str:
    """What a round of 100 silos takes among few and among many."""
    points = [run("process", silos=n, rounds=r, records=20, features=10, active=100) for n, r in DRAWN]
    rows = [[f"{point['silos']:,}", f"{1e3 / point['rounds_per_second']:.2f}"] for point in points]
    return table(("silos, of whom 100 answer in a round", "milliseconds a round"), rows)


def hosts() -> dict[int, list[Point]]:
    """The same federations with their silos in the trial's actor (0), on one host and on two."""
    return {
        count: [run("ray", silos=25, records=n, features=50, rounds=r, hosts=count) for n, r in HOSTED]
        for count in (0, 1, 2)
    }


def growth_tables(grown: dict[str, list[Point]]) -> str:
    """A table for each size, and what a silo costs."""
    fixed = {
        "silos": "20 records x 10 features each",
        "records": "25 silos x 10 features, records a silo",
        "features": "25 silos x 320 records",
    }
    parts = []
    for name, points in grown.items():
        rows = [
            [
                f"{point[name]:,}",
                f"{point['setup']:.2f}",
                f"{point['rounds_per_second']:,.1f}",
                f"{point['memory_mib']:,.0f}",
            ]
            for point in points
        ]
        head = (f"{name} ({fixed[name]})", "set-up s", "rounds per second", "MiB above imports")
        parts.append(table(head, rows))
    few, many = grown["silos"][-2:]
    per_silo = (many["memory_mib"] - few["memory_mib"]) * 2**20 / (many["silos"] - few["silos"])
    seconds = 1 / many["rounds_per_second"] - 1 / few["rounds_per_second"]
    each = seconds / (many["silos"] - few["silos"]) * 1e6
    own = 8 * many["records"] * (many["features"] + 2)
    parts.append(
        f"From {few['silos']:,} to {many['silos']:,} silos each one more costs {per_silo:,.0f} bytes, "
        f"{own:,} of them its padded records, and {each:.1f} microseconds a round."
    )
    return "\n\n".join(parts)


def hosts_table(hosted: dict[int, list[Point]]) -> str:
    """Rounds per second by number of hosts, and where the second one pays."""
    rows = [
        [f"{n:,}", *(f"{hosted[count][i]['rounds_per_second']:,.1f}" for count in hosted)]
        + [f"{hosted[count][i]['peak_mib']:,.0f}" for count in hosted]
        for i, (n, _) in enumerate(HOSTED)
    ]
    names = {0: "no host of their own", 1: "1 host", 2: "2 hosts"}
    head = ("records a silo (25 silos x 50 features)", *(f"{names[count]}, rounds/s" for count in hosted))
    pays = [
        f"{n:,}"
        for i, (n, _) in enumerate(HOSTED)
        if hosted[2][i]["rounds_per_second"] > max(hosted[k][i]["rounds_per_second"] for k in (0, 1))
    ]
    verdict = (
        f"A second host pays from {pays[0]} records a silo on." if pays else "A second host never pays here."
    )
    return table((*head, *(f"{names[count]}, MiB" for count in hosted)), rows) + f"\n\n{verdict}"


def admission_table() -> str:
    """How long silos take to price a plan."""
    rows = []
    for sampler, fraction in SAMPLERS.items():
        batch = {"sampler": sampler} | ({} if fraction is None else {"fraction": fraction})
        point = run("admission", silos=1000, records=200, features=10, rounds=35, batch=batch)
        rows.append([sampler, f"{point['seconds']:.2f}"])
    return table(("sampler (1,000 silos, each with its own epsilon, 35 rounds)", "seconds"), rows)


def curves(grown: dict[str, list[Point]], hosted: dict[int, list[Point]]) -> dict[str, list[Curve]]:
    """The figure's lines, panel by panel."""
    titles = {"silos": "silos", "records": "records a silo", "features": "features"}
    panels = {
        titles[name]: [
            Curve(
                "one process",
                [point[name] for point in points],
                [point["rounds_per_second"] for point in points],
                [point["memory_mib"] for point in points],
            )
        ]
        for name, points in grown.items()
    }
    names = {0: "in the trial's actor", 1: "1 host", 2: "2 hosts"}
    panels["records a silo, on Ray"] = [
        Curve(
            names[count],
            [point["records"] for point in points],
            [point["rounds_per_second"] for point in points],
            [point["peak_mib"] for point in points],
        )
        for count, points in hosted.items()
    ]
    return panels


def main() -> None:
    """Measure, write, draw."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    grown, hosted = growth(), hosts()
    text = "\n\n".join([where(), growth_tables(grown), drawn_table(), hosts_table(hosted), admission_table()])
    write("scaling", text)
    draw(curves(grown, hosted), Path(__file__).parents[1] / "docs" / "images" / "scaling.svg")
    print(text)


if __name__ == "__main__":
    main()
