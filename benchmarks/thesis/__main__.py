"""Run the thesis's experiments and write docs/results.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.thesis import page, runs
from benchmarks.thesis.plan import Experiment, Plan, read_plan


def parsed(arguments: Sequence[str] | None, plan: Plan) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make results", description=__doc__)
    known = list(plan.experiments)
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--honest", action="store_true", help="only the honest variants")
    parser.add_argument("--no-audit", action="store_true", help="audits that are not there are left out")
    parser.add_argument("--write", action="store_true", help="run nothing: write the page from what is there")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="FIELD=VALUE", help="over every scenario's own"
    )
    parser.add_argument(
        "--out", type=Path, default=runs.ROOT / "runs" / "results", help="where cells are kept"
    )
    parser.add_argument("--page", type=Path, default=page.PAGE, help="another page with the same parts")
    parser.add_argument("--readme", type=Path, default=page.README, help="another list of the scenarios")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Experiment by experiment: its sweeps, its audit, its part of the page; then the verdicts."""
    plan = read_plan()
    asked = parsed(arguments, plan)
    for name, one in plan.experiments.items():
        if name in (asked.only or [name]):
            _experiment(name, one, asked)
    page.write_overview(plan, runs.taken(asked.out), asked.page)
    page.write_verdicts(plan, asked.out, asked.page)
    page.write_readme(plan, runs.taken(asked.out), asked.readme)


def _experiment(name: str, one: Experiment, asked: argparse.Namespace) -> None:
    scenario = runs.SCENARIOS / f"{name}.yaml"
    running = scenario.exists() and not asked.write and (asked.only or not one.only_if_named)
    for variant in one.swept if running else ():
        if variant == "honest" or not asked.honest:
            print(f"{name}, {variant}", flush=True)
            runs.sweep(scenario, variant, asked.out, asked.set)
    if running and one.audit and not asked.no_audit:
        audited = runs.audit(scenario, one.audit, asked.out, one.effort)
    else:
        audited = runs.kept_audit(scenario, asked.out) if one.audit else None
    found = [page.read(asked.out, name, variant, one) for variant in one.variants]
    measured = [each for each in found if each is not None]
    page.write_section(name, one, measured, audited, runs.taken(asked.out), asked.page)


if __name__ == "__main__":
    main()
