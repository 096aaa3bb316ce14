"""A table of visits, several of each person, whose ids no one but the owner may see."""

import csv
from pathlib import Path

import numpy as np

SCHEMA = {
    "age": {"kind": "number", "lower": 0, "upper": 100},
    "dose": {"kind": "number", "lower": 0, "upper": 1},
    "readmitted": {"kind": "category", "categories": ["0", "1"]},
}


def id_of(person: int) -> str:
    return f"MRN-{90_000 + 37 * person}"


def write_visits(place: Path, persons: int, most: int, seed: int) -> Path:
    """From 1 to `most` visits of each, in random order."""
    rng = np.random.default_rng(seed)
    visits = [person for person in range(persons) for _ in range(1 + person % most)]
    with open(place, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient_id", "age", "dose", "readmitted"])
        for person in rng.permutation(visits):
            rows.writerow([id_of(person), rng.integers(20, 90), round(rng.uniform(), 3), rng.integers(2)])
    return place
