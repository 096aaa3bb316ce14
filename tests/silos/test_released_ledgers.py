"""Ledgers that released versions wrote are read, verified and continued, each kept here as it was written.

`ledgers/vX/` is a silo's folder after one closed run, made by that version's code.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.channels import InMemory
from support.deployed import SCENARIO
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import Refused
from fedsim.deployment.federation_file import parse_federation
from fedsim.deployment.run import deploy
from fedsim.scenario.load import parse
from silos.front.config import load_config
from silos.front.silo import Silo
from silos.vault.book import read

WRITTEN = [("6174046cae379cdc66b06822cbabfa39d3c6a9db0c0a10b6a1650ac1bdd2005e", 16, 0.2009862656190444)]
"""Their heads, lengths and what was charged, as those versions read them."""
RELEASED = sorted(Path(__file__).with_name("ledgers").iterdir())


@pytest.fixture(params=RELEASED, ids=lambda folder: folder.name)
def silo(request, tmp_path):
    """A copy of the folder of a silo of that version, with the modes that git does not keep."""
    shutil.copytree(request.param, tmp_path / "silo")
    (tmp_path / "silo" / "state").chmod(0o700)
    for file in (tmp_path / "silo" / "state").iterdir():
        file.chmod(0o600)
    return tmp_path / "silo"


def command(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_it_is_read_verified_and_continued(silo, tmp_path):
    state = silo / "state"
    before = read(state / "ledger.sqlite")
    (first,) = before.runs.values()
    assert (first.open, list(first.rounds)) == (False, list(range(6)))
    assert (before.head, before.length, before.account.charged.mu_sq) in WRITTEN
    assert "whole and in order" in command("ledger", "show", state)
    command("ledger", "receipt", state, first.run, "--out", tmp_path / "receipt.json")
    verified = command("ledger", "verify", tmp_path / "receipt.json", "--key", state / "identity.pub")
    assert verified.startswith("Verified")

    config = load_config(silo / "silo.yaml")
    federation = parse_federation({"silos": {config.name: {"identity": str(state / "identity.pub")}}})
    with closing(Silo.open(config)) as opened:
        channel = InMemory({config.name: opened.answer})
        deploy(parse(SCENARIO), federation, channel, tmp_path / "run")
    after = read(state / "ledger.sqlite", before.head)
    assert len(after.runs) == 2
    charged = before.account.charged.mu_sq, after.account.charged.mu_sq
    assert charged[1] == pytest.approx(2 * charged[0], rel=0.01)


def test_a_ledger_of_another_format_is_refused_with_the_way_out(silo):
    ledger = silo / "state" / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    as_it_was = ledger.read_bytes()
    with pytest.raises(Refused, match="a newer fedsim"):
        Silo.open(load_config(silo / "silo.yaml"))
    assert "a newer fedsim" in " ".join(command("ledger", "show", silo / "state", code=2).split())
    assert ledger.read_bytes() == as_it_was
