"""`fedsim ledger`: what it prints of a ledger that a daemon is writing, and receipts checked elsewhere."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.distribution import assert_not_loaded
from support.ledgers import CAPS, answer, enrolled, gaussian, hexed, open_run, sampled
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.chain import text
from fedsim.common.identity import Identity
from fedsim.privacy import gaussian as exact
from silos.vault.ledger_file import LedgerFile


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LedgerFile]:
    """A silo at work: a closed run, and one under way."""
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path, {"notices": ["Noise is seeded."]}) as file:
        first = open_run(file, 1, gaussian(10, 0.03125))
        answer(first, 0)
        answer(first, 1)
        file.close_run(first.run)
        answer(open_run(file, 2, sampled(5)), 0)
        yield file


def _ledger(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)], env={"COLUMNS": "100"})


def test_it_shows_the_account_and_the_runs_beside_the_daemon(running: LedgerFile, tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "ledger.sqlite"):
        shown = _ledger("show", state)
        assert shown.exit_code == 0, shown.output
        assert "Noise is seeded." in shown.output
        assert f"(4, {CAPS.delta:g})-DP" in shown.output
        assert running.head in shown.output
        assert "2 of 10" in shown.output
        assert "1 of 5" in shown.output


def test_what_is_used_is_rounded_up_and_what_is_left_down(running: LedgerFile, tmp_path: Path) -> None:
    lines = _ledger("show", tmp_path).output.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("mu^2 of Gaussian plans")]
    account = running.account
    cap, charged, reserved, left = map(float, row[-4:])
    assert cap <= CAPS.total.mu_sq
    assert charged >= account.charged.mu_sq
    assert (reserved, account.reserved.mu_sq) == (0, 0)
    assert left <= account.left.mu_sq
    assert cap + left > CAPS.total.mu_sq + account.left.mu_sq - 2e-3  # though not by much


def test_json_has_everything(running: LedgerFile, tmp_path: Path) -> None:
    found = json.loads(_ledger("show", tmp_path, "--json", "--delta", "1e-7").output)
    assert found["head"] == running.head
    assert found["left"] == running.account.left.tree()
    assert found["caps"] == CAPS.tree()
    assert [(run["run"], run["open"], run["answered"]) for run in found["runs"]] == [
        (hexed(501), False, [0, 1]),
        (hexed(502), True, [0]),
    ]
    afforded = found["gaussian_plan_left"]["epsilon"]
    assert 0 < exact.mu(afforded, 1e-7) ** 2 <= running.account.left.mu_sq


def test_a_head_that_the_chain_does_not_have_is_said(running: LedgerFile, tmp_path: Path) -> None:
    assert _ledger("show", tmp_path, "--head", running.head).exit_code == 0
    unknown = _ledger("show", tmp_path, "--head", "ab" * 32)
    assert unknown.exit_code == 2
    assert "lost entries" in unknown.stderr


@pytest.mark.parametrize("arguments", [["show", "nothing"], ["show", "nothing", "--json"]])
def test_where_no_ledger_is_that_is_said(arguments: list[str]) -> None:
    found = _ledger(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "there is none" in found.stderr


def test_an_altered_ledger_is_not_shown(running: LedgerFile, tmp_path: Path) -> None:
    running.close()
    connection = sqlite3.connect(tmp_path / "ledger.sqlite")
    connection.execute("UPDATE entries SET payload = replace(payload, '0.03125', '0.03124')")
    connection.commit()
    connection.close()
    found = _ledger("show", tmp_path)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "altered: entry 3" in found.stderr


def test_a_delta_out_of_bounds_is_named(running: LedgerFile, tmp_path: Path) -> None:
    assert "--delta: 1.0" in _ledger("show", tmp_path, "--delta", "1").stderr


def test_a_receipt_is_checked_with_the_public_key_alone(running: LedgerFile, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "receipt.json"
    out.parent.mkdir()
    assert _ledger("receipt", tmp_path, hexed(501), "--out", out).exit_code == 0
    assert _ledger("receipt", tmp_path, hexed(501)).stdout == out.read_text()
    public = shutil.copy(tmp_path / "identity.pub", out.parent)
    for key in (public, Path(public).read_text().strip()):
        good = _ledger("verify", out, "--key", key, "--json")
        assert good.exit_code == 0, good.output
        assert json.loads(good.stdout)["rounds"] == [0, 1]
    out.write_text(out.read_text().replace('"rounds":[0,1]', '"rounds":[0,2]'))
    bad = _ledger("verify", out, "--key", public)
    assert (bad.exit_code, bad.stdout) == (2, "")
    assert "altered" in bad.stderr


def test_a_receipt_is_shown_with_its_verdict_first(running: LedgerFile, tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_text(_ledger("receipt", tmp_path, hexed(501)).stdout)
    shown = _ledger("verify", tmp_path / "receipt.json", "--key", tmp_path / "identity.pub").stdout
    verdict, notice, *rows = shown.splitlines()
    assert verdict.startswith("Verified")
    assert notice == "Noise is seeded."
    assert max(map(len, shown.splitlines())) <= 80
    stated = {row[:12].strip(): row[12:] for row in rows}
    record = running.book.runs[hexed(501)]
    assert stated["Run"] == hexed(501)
    assert stated["Rounds"].startswith("2,")
    assert stated["Run's cost"].startswith("(1, 1e-06)-DP")
    assert record.charged is not None
    assert float(stated["Charged"].split()[0]) >= record.charged.mu_sq
    assert stated["Opened"][:4] == stated["Closed"][:4] > "2020"


def test_a_signed_text_with_other_content_is_refused_and_sends_the_terminal_nothing(
    running: LedgerFile, tmp_path: Path
) -> None:
    identity = Identity.load(tmp_path)
    good = json.loads(_ledger("receipt", tmp_path, hexed(501)).stdout)
    file = tmp_path / "signed.json"
    for change in ({"silo": "a\x1b[2Jb\n"}, {"rounds": 5}, {"opened": 10**30}, {"charged": {"mu_sq": -1.0}}):
        content = {name: value for name, value in (good | change).items() if name != "signature"}
        whole = b"fedsim receipt\n" + text(content).encode()
        file.write_text(json.dumps({**content, "signature": identity.sign(whole).hex()}))
        done = _ledger("verify", file, "--key", identity.public)
        assert "\x1b" not in done.output
        assert (done.exit_code, done.stderr.count("\n")) == ((0, 0) if "silo" in change else (2, 1))


@pytest.mark.parametrize("colluding", [{}, {"epsilon_colluding": 12.34}])
def test_the_ledger_fits_eighty_columns(tmp_path: Path, colluding: dict[str, float]) -> None:
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path, {"notices": ["A notice. " * 20]}) as file:
        terms = {"epsilon_guaranteed": 1.23456, **colluding, "delta": 1.23456e-5}
        study = {"name": "Readmission [b]of\x1b" + " patients" * 9, "purpose": "To know. " * 100}
        run = open_run(file, 1, gaussian(1000, 1.23456e-5), terms=terms, study=study)
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)], env={"COLUMNS": "80"}).output
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("…") == 1  # the study's name
    (row,) = [line for line in shown.splitlines() if "0 of 1000" in line]
    assert hexed(501)[:8] in row
    assert "1.235e-05" in row
    assert "Readm" in row
    with LedgerFile.open(path) as file:
        file.close_run(run.run)
    (tmp_path / "receipt").write_text(_ledger("receipt", tmp_path, run.run).stdout)
    stated = _ledger("verify", tmp_path / "receipt", "--key", tmp_path / "identity.pub").stdout
    assert "Study       Readmission [b]of? patients" in stated
    assert "\n            To know. To know." in stated
    assert max(map(len, stated.splitlines())) <= 100


def test_a_run_is_named_by_digits_that_only_it_begins_with(running: LedgerFile, tmp_path: Path) -> None:
    assert "2 runs begin so" in _ledger("receipt", tmp_path, "000").stderr
    assert "0 runs begin so" in _ledger("receipt", tmp_path, "ff").stderr
    assert "closed" in _ledger("receipt", tmp_path, hexed(502)).stderr


def test_what_is_no_key_or_receipt_is_named(tmp_path: Path) -> None:
    (tmp_path / "receipt").write_bytes(b"\xff")
    assert "RECEIPT" in _ledger("verify", tmp_path / "receipt", "--key", "00" * 32).stderr
    (tmp_path / "receipt").write_text("{}")
    assert "--key" in _ledger("verify", tmp_path / "receipt", "--key", "nonsense").stderr


def test_reading_loads_no_torch(running: LedgerFile, tmp_path: Path) -> None:
    code = (
        "from typer.testing import CliRunner; from fedsim.cli.main import app\n"
        f"done = CliRunner().invoke(app, ['ledger', 'show', {str(tmp_path)!r}])\n"
        "assert done.exit_code == 0, done.output"
    )
    assert_not_loaded(code, "torch flwr ray")


@pytest.mark.parametrize(("colluding", "shown"), [(3.25, "3.25"), (None, "none")])
def test_runs_of_sums_have_what_is_left_if_aggregators_collude(
    tmp_path: Path, colluding: float | None, shown: str
) -> None:
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path) as file:
        terms = {"epsilon_guaranteed": 1.0, "epsilon_colluding": colluding, "delta": 1e-6}
        open_run(file, 1, gaussian(10, 0.01), terms=terms)
        alone = _ledger("show", tmp_path).output
        open_run(file, 2, gaussian(10, 0.01))
    told = _ledger("show", tmp_path).output
    assert "while server and shuffler do not collude" in told
    first, second = [line.split() for line in told.splitlines() if "of 10" in line]
    assert first[6:9] == ["1", shown, "1e-06"]
    assert second[6:9] == ["1", "1", "1e-06"]
    assert "colluding" in alone


def test_without_sums_nothing_is_said_of_them(running: LedgerFile, tmp_path: Path) -> None:
    assert "collud" not in _ledger("show", tmp_path).output
