"""The page of what does not go with what has the rows of the table; as a program, this file writes it."""

from pathlib import Path

from fedsim.protocol.clashes import CLASHES, FOLD

PAGE = Path(__file__).parents[2] / "docs" / "clashes.md"
HEAD = """# What does not go with what

Two features go together, or a row below says why not and what to use instead. The rows are those of
`fedsim/protocol/clashes.py`, which every door asks. A run is refused before anything is spent, with
the row's words (`...` stands for a name) and the field to mend. The doors:

- *scenario*: every command and function that makes a run of a scenario, `fedsim price` too;
- *deployment*: `fedsim deploy` and `fedsim up`, before any silo is asked;
- *offer*: the server before it sends an offer, and the silo that gets one; a simulation that silos would
  refuse here runs, and its report says so;
- *gate*: the silo, whatever it was sent, and every simulated silo;
- *sweep*, *tuning*, *audit*, *release*: these commands.

| what | with | refused at | field | why, and what to use instead |
|---|---|---|---|---|
"""
FOLDS = """
A sweep makes runs at once that differ in epsilon, step size and clip alone, but not with: {}. Such runs
work, each by itself.
"""


def page() -> str:
    rows = []
    for row in CLASHES:
        if row.doors != ("fold",):
            first, others = row.facts[0], " and ".join(row.facts[1:]) or "-"
            words = row.words.format(*["..."] * len(row.facts))
            rows.append(f"| {first} | {others} | {', '.join(row.doors)} | `{row.field}` | {words} |\n")
    return HEAD + "".join(rows) + FOLDS.format(", ".join(FOLD))


def test_the_page_has_the_rows_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
