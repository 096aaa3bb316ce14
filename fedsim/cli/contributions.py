"""`fedsim contributions`: how many records each person has, for the owner of a table and nobody else.

The errors are those of one release of a mean over all records, of values in [0, 1] with standard deviation
1/2, at the whole epsilon (`fedsim.scenario.contributions.variance`). Where persons of many records differ
from others, the mean is off by at most the share of records that is not kept (Amin et al. 2019, Section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedsim.cli.app import SCENARIOS, app, spoken
from fedsim.cli.output import titled
from fedsim.cli.reading import SPOKEN, GivenReading, Tables, with_reading

if TYPE_CHECKING:
    from fedsim.data.source import Ints

LAST = "An h that is read from this is not private: epsilon covers no choice that looks at records."


@app.command(rich_help_panel=SCENARIOS)
@with_reading
def contributions(
    tables: Tables,
    person_column: Annotated[str, typer.Option(help="Column of ids that say whose each record is.")],
    epsilon: Annotated[float, typer.Option(min=1e-3, help="At which errors are shown.")] = 1.0,
    *,
    reading: GivenReading,
) -> None:
    """Show records per person, and by h the error of bounds limit and smooth. For the owner alone.

    It reads one column: run it where it may be read. What it prints is not private.
    """
    import numpy as np

    from fedsim.data.column_values import Cells
    from fedsim.data.source import alike, numbered
    from fedsim.data.table import open_tables

    with spoken({**SPOKEN, "person": "--person-column"}):
        table = open_tables(tables, "path", reading)[0]
        table.require(person_column, "person")
        values = table.read([person_column])[person_column]
        ids = Cells(values, np.arange(len(values)), "person", reading, table.place).ids(person_column)
    _print(np.sort(np.bincount(numbered(ids))), epsilon)
    if similar := alike(ids):
        typer.echo(f"{similar:,} ids differ from others in spaces, case or leading zeros only.")
    typer.echo(LAST)


def _print(counts: Ints, epsilon: float) -> None:
    import numpy as np

    persons, records = len(counts), int(counts.sum())
    top = counts[-max(1, persons // 100) :].sum() / records
    typer.echo("Not private: for the owner of the records, and nobody else.")
    typer.echo(
        f"{records:,} records of {persons:,} persons: median {np.median(counts):g}, mean {counts.mean():.3g}"
        f", p90 {np.quantile(counts, 0.9):g}, max {counts[-1]:,}; the top 1 % of persons have {top:.0%}"
    )
    steps = 2 ** np.arange(int(counts[-1] - 1).bit_length() + 1)
    columns = ("h", "persons above", "kept", "limit", "smooth", "at worst")
    table = titled(f"By h, at epsilon {epsilon:g}", numbers=columns)
    for h in steps.tolist():
        kept, (limit, smooth) = np.minimum(counts, h).sum() / records, errors_of(counts, h, epsilon)
        errors = (f"{each:.3f}" for each in (limit, smooth, limit + 1 - kept))
        table.add_row(f"{h:,}", f"{(counts > h).sum():,}", f"{kept:.0%}", *errors)
    Console().print(table, highlight=False)
    typer.echo(
        "limit, smooth: error of a mean of values in [0, 1], by noise and chance, if persons are alike;"
    )
    typer.echo("at worst: with what is dropped. Bound mean is smooth with h = 1; bound clip has no h.")


def errors_of(counts: Ints, h: int, epsilon: float) -> tuple[float, float]:
    """By noise and chance with `limit` and `smooth`, as above; `counts` (m,) are persons', delta 1 / m^2."""
    import numpy as np

    from fedsim.privacy import gaussian
    from fedsim.protocol.contributions import variance

    own, many = np.unique(counts, return_counts=True)
    profile = dict(zip(own.tolist(), (many / len(counts)).tolist(), strict=True))
    noise = 2 / float(gaussian.mu(epsilon, 1 / max(2, len(counts)) ** 2))  # over the deviation of 1/2
    limit, smooth = (variance(h, profile, len(counts), noise, bound) for bound in ("limit", "smooth"))
    return 0.5 * limit**0.5, 0.5 * smooth**0.5
