"""`fedsim contributions` shows an owner the records of each person, and no id."""

from pathlib import Path

import numpy as np
import pytest
from support.scenarios import invoke
from typer.testing import CliRunner

from fedsim.cli.contributions import LAST, errors_of
from fedsim.cli.main import app
from fedsim.privacy import gaussian

COUNTS = np.array([1, 1, 2, 4, 8, 16])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    ids = [f"Secret{k}" for k, count in enumerate(COUNTS) for _ in range(count)]
    (tmp_path / "own.csv").write_text("\n".join(["pid,x", *(f"{each},1" for each in ids), "secret0 ,1", ""]))
    return tmp_path / "own.csv"


def test_the_owner_sees_counts_and_no_id(table: Path) -> None:
    said = invoke("contributions", str(table), "--person-column", "pid", "--epsilon", "2")
    first, numbers, *_ = lines = said.splitlines()
    assert first.startswith("Not private")
    assert numbers.startswith("33 records of 7 persons: median 2, mean 4.71, p90 11.2, max 16;")
    assert numbers.endswith("have 48%")
    rows = {int(each[0]): each[1:] for line in lines[5:-4] if (each := line.split())}
    assert list(rows) == [1, 2, 4, 8, 16]
    assert [rows[h][:2] for h in (1, 2, 4, 8, 16)] == [
        ["4", "21%"],
        ["3", "33%"],
        ["2", "52%"],
        ["1", "76%"],
        ["0", "100%"],
    ]
    assert lines[-2].startswith("1 ids differ")
    assert lines[-1] == LAST
    assert "ecret" not in said


@pytest.mark.parametrize("h", [1, 2, 4, 16])
def test_errors_are_those_of_a_simulation(h: int) -> None:
    """Means of coins, of persons alike: each bound's terms and noise, drawn many times."""
    epsilon, rng = 3.0, np.random.default_rng(h)
    persons, noise = np.repeat(np.arange(6), COUNTS), h / gaussian.mu(epsilon, 1 / 36)
    kept, found = np.minimum(COUNTS, h), {"limit": [], "smooth": []}
    for _ in range(20_000):
        values = rng.integers(2, size=len(persons))
        weights = (kept / COUNTS)[persons]
        own = np.split(values, np.cumsum(COUNTS)[:-1])
        chosen = [rng.permutation(each)[:h].sum() for each in own]
        for name, total in (("limit", sum(chosen)), ("smooth", weights @ values)):
            found[name].append((total + rng.normal(0, noise)) / kept.sum() - 0.5)
    for name, told in zip(("limit", "smooth"), errors_of(COUNTS, h, epsilon), strict=True):
        assert np.sqrt(np.mean(np.square(found[name]))) == pytest.approx(told, rel=0.03)


def test_a_blank_id_is_counted_and_none_is_printed(table: Path) -> None:
    table.write_text("pid,x\nSecret,1\n,1\n NA,2\n")
    found = CliRunner().invoke(app, ["contributions", str(table), "--person-column", "pid"])
    assert found.exit_code == 2
    assert "--person-column: 'pid': 2 of 3 records have no value there (the first is row 2)" in found.stderr
    assert "Secret" not in found.output + found.stderr
