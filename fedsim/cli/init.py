"""`fedsim init`: from a table to a scenario that trains a private model of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli.app import SCENARIOS, app, check_unused, spoken
from fedsim.cli.reading import SPOKEN, GivenReading, Tables, with_reading
from fedsim.common.durable import atomic_file
from fedsim.common.files import writing

if TYPE_CHECKING:
    from fedsim.data.drafting import Draft

_SILOS, _EPSILON = 5, 1


@app.command(rich_help_panel=SCENARIOS)
@with_reading
def init(
    tables: Tables,
    target: Annotated[str, typer.Option(help="Column to predict.")],
    silo: Annotated[
        str | None, typer.Option(help="Column that names each record's silo; default: five random silos.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the table's name, here, as YAML.")
    ] = None,
    *,
    reading: GivenReading,
) -> None:
    """Write a scenario that trains a private model of a table: schema, silos, problem, metric, budget.

    It reads the records: run it where they may be read. The schema is a draft, and not private.
    """
    from fedsim.data.drafting import draft, problem_of
    from fedsim.data.table import open_tables

    with spoken(SPOKEN):
        place = out or Path(f"{_stem(tables)}.yaml")
        check_unused(place, "--out")
        table, silo_column = open_tables(tables, "path", reading, silo)
        drafted = _curved(draft(table, target, silo_column, reading))
    text = _scenario(tables, place, silo, reading, drafted)
    with writing(place), atomic_file(place) as beside:
        beside.write_text(text, encoding="utf-8")
    features, left_out = f"{len(drafted.schema) - 1} of the table's columns", len(drafted.left_out)
    more = f", {left_out} left out (see there why)" if left_out else ""
    typer.echo(f"Wrote {place}: {problem_of(drafted.target)} by {features}{more}. Next:")
    typer.echo(_next(tables, target, silo, reading, place))


def _curved(drafted: Draft) -> Draft:
    """The draft, with curves where public numbers say that they pay, at the budget that is written."""
    from fedsim.data.drafting import HATS, problem_of
    from fedsim.scenario.chosen import curves_pay

    made = drafted.with_curves
    records = drafted.target.records
    sizes = [int(0.8 * n) for n in drafted.sizes or [records // _SILOS] * _SILOS]  # a fifth tests
    if problem_of(drafted.target) != "logistic_regression" or min(sizes) < 2:
        return drafted
    *features, _ = made.schema.values()
    widths = (len(each.get("categories", ())) or (HATS if "encode" in each else 2) for each in features)
    p = 1 + sum(width - 1 for width in widths)
    return made if curves_pay(sizes, p, _EPSILON) else drafted


def _stem(tables: Sequence[Path]) -> str:
    """The file's name, or of several files that of their folder, unless it is the working directory."""
    folder = os.path.commonpath([path.parent for path in tables])
    return Path(folder).name or "scenario" if len(tables) > 1 else tables[0].stem


def _next(tables: Sequence[Path], target: str, silo: str | None, reading: GivenReading, place: Path) -> str:
    options = ["--target", target, *(["--silo", silo] if silo else [])]
    for option, value in reading.model_dump(mode="json", exclude_defaults=True).items():
        each = value if isinstance(value, list) else [value]
        options += [f"--{option}"] if value is True else [x for v in each for x in (f"--{option}", v)]
    commands = {
        f"inspect {shlex.join([*map(str, tables), *options])}": "the records at a glance",
        f"privacy {shlex.quote(str(place))}": "what a run costs each silo",
        f"simulate {shlex.quote(str(place))}": "train a private model, and write its page",
        f"sweep {shlex.quote(str(place))} --set sweep.grid.privacy.epsilon=[1,3,8]": "error by epsilon",
    }
    return "\n".join(f"  fedsim {command}    # {why}" for command, why in commands.items())


_HEAD = """\
# Drafted from {tables} by `fedsim init`; change what you like. `fedsim schema` has the fields that
# can stand here.
"""
_SCHEMA = """\
  # The ranges, categories and fill values below were READ FROM THE RECORDS: epsilon does not cover them.
  # Compare each with documentation that holds for every silo, mend it, and delete the next line. Values
  # beyond a range count as its end; `fill` is what a missing value counts as; a column without an entry is
  # not read. `encode: {hats: 8}` lets a number enter as a curve, where records are many or epsilon is large.
  drafted: true
"""
_RANDOM = f"""\
# No column names the silos: the public seed divides the records among {_SILOS} at random.
partition: {{name: iid, num_partitions: {_SILOS}}}
"""
_UNEVEN = """\
# {share:.0%} of the records are {name!r}: a model that says the other to all has a small error. So the area
# under the ROC curve is compared.
report: {{metric: auc}}
"""
_PRIVACY = """\
privacy:
  epsilon: 1      # each silo's limit: lower is more private; [1, 2, ...] or {silo: 1} gives each its own
  delta: 1/n^2    # probability with which epsilon may not hold; n is the silo's number of records
"""


def _scenario(
    tables: Sequence[Path], place: Path, silo: str | None, reading: GivenReading, drafted: Draft
) -> str:
    """The scenario's text, its file names relative to the folder of `place`."""
    from fedsim.common.serialise import to_yaml
    from fedsim.data.drafting import is_uneven, problem_of

    def lines(tree: dict[str, Any], indent: str = "") -> str:
        nested = {key: isinstance(value, dict | list) for key, value in tree.items()}
        texts = [
            to_yaml({key: value}, default_flow_style=None if nested[key] else False, allow_unicode=True)
            for key, value in tree.items()
        ]
        return "".join(f"{indent}{line}\n" for text in texts for line in text.splitlines())

    files = [os.path.relpath(path, place.parent) for path in tables]
    stems = {Path(file).stem for file in files}
    several = {Path(file).stem if len(stems) == len(files) else file: file for file in files}
    target, named = drafted.target, {"silo_column": silo} if silo else {}
    data = {"name": "csv", "path": files[0] if len(files) == 1 else several, "target": target.name, **named}
    problem = problem_of(target)
    what = "several files" if len(files) > 1 else tables[0].name
    parts = [
        _HEAD.format(tables=what),
        lines({"name": place.stem, "description": f"{problem.replace('_', ' ')}: {target.name} in {what}"}),
        "trials: 3\ndata:\n",
        lines(data | reading.model_dump(mode="json", exclude_defaults=True), "  "),
        _SCHEMA,
        "  schema:\n",
        "".join(f"    {line}\n" for line in drafted.yaml.splitlines()),
        "partition: natural_id\n" if silo or len(files) > 1 else _RANDOM,
        f"problem: {{name: {problem}, silo_weights: size}}  # each record counts equally\n",
        "algorithm: auto  # by ranges, sizes and budgets, never by records; a run says which, and why\n",
        _PRIVACY,
    ]
    if is_uneven(target):
        name, count = target.counts.most_common()[-1]
        parts.append(_UNEVEN.format(share=count / target.counts.total(), name=name))
    return "".join([*parts, "runtime: inprocess\n"])
