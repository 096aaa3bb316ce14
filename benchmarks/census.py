"""Census income (UCI 2, CC BY 4.0) as one table with a header: `census.py adult.data adult.test OUT`.

The two files of the UCI repository one after another, 32,561 and 16,281 records, without spaces, and with the
target as Yes (above $50,000) or No.
"""

import csv
import sys
from pathlib import Path

NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]


def rows(file: Path) -> list[list[str]]:
    """The records of one of the files; the second begins with another line, and its labels end with a dot."""
    found = [[cell.strip() for cell in row] for row in csv.reader(file.read_text().splitlines())]
    return [
        [*row[:-1], "Yes" if row[-1].startswith(">") else "No"] for row in found if len(row) == len(NAMES)
    ]


if __name__ == "__main__":
    train, test, out = map(Path, sys.argv[1:])
    with out.open("w", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([NAMES, *rows(train), *rows(test)])
