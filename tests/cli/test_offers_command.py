"""`fedsim offers`: what a silo's operator reads of an offer, and decides beside the daemon."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import one_server, pages
from support.daemons import enrolled_silo
from support.deployed import Caller, calling, enrolled, offer_of, resolved_of, write_silos
from support.distribution import assert_not_loaded
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.wire.messages import Offer, Shape, named
from silos.front.config import Config, load_config
from silos.front.pending import PendingOffers
from silos.vault.book import DAY

RESOLVED = resolved_of()
STUDY = {
    "name": "Readmission [b]of heart patients" + " again" * 8,
    "purpose": "To find whom a visit helps. " * 30,
}
STUDY["purpose"] = STUDY["purpose"].strip()


def offer(number: int = 1, **changes: Any) -> dict[str, Any]:
    return offer_of(RESOLVED, "silo-00", **{"session": f"{number:064x}", "study": STUDY, **changes})


def digest(head: dict[str, Any]) -> str:
    return named(Offer.model_validate(head).text)


FIRST = digest(offer())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (made,) = enrolled(write_silos(tmp_path, RESOLVED, policy={"approve": "ask"})[:1])
    return made


@pytest.fixture
def caller(config: Config) -> Iterator[Caller]:
    """A daemon that has been offered one run."""
    with calling(config) as made:
        made.refused("offer", **offer())
        yield made


def _offers(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["offers", *map(str, arguments)], env={"COLUMNS": "80"})


def refused(*arguments: str | Path) -> str:
    """The one line of a command that refuses its input."""
    done = _offers(*arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    return str(done.stderr)


def test_a_run_is_listed_shown_approved_and_gone_once_admitted(caller, config):
    listed = _offers("list", config.state).output
    assert FIRST[:16] in listed
    assert "none" in listed
    assert _offers("approve", config.state, FIRST[:8]).exit_code == 0
    assert "approved" in _offers("list", config.state / "ledger.sqlite").output
    caller.admitted(offer())
    assert _offers("list", config.state).output == "No offer waits.\n"
    shown = CliRunner().invoke(app, ["ledger", "show", str(config.state)], env={"COLUMNS": "80"}).output
    assert "Readmission" in shown


def test_what_is_shown_is_in_words_and_fits_eighty_columns(caller, config):
    for shown in (_offers("show", config.state, FIRST[:8]).output, _offers("list", config.state).output):
        assert max(map(len, shown.splitlines())) <= 80
        assert "Readmission [b]of" in shown
    shown = " ".join(_offers("show", config.state, FIRST).output.split())
    kept = PendingOffers(config.state).all(0)[0]
    for words in (
        f"Offer {FIRST[:16]} to silo silo-00: not decided",
        f"Purpose {STUDY['purpose']}",
        "From not known, since an offer is not signed",
        "noisy_minibatch_sgd on logistic_regression, 6 rounds",
        "silo-00 32, silo-01 32, silo-02 32: 96 records, as the server says; 32 are this silo's",
        "Run's cost (2, 1e-06)-DP for replacing one of its records",
        "0.201 of the 1.006 left, mu^2 of Gaussian plans; 0.8053 after it",
        f"Digest {FIRST}",
    ):
        assert words in shown
    assert kept.cost["mu_sq"] <= 0.201  # a cost is rounded up, what is left is rounded down
    left = caller.silo.ledger.account.left.mu_sq
    assert left - kept.cost["mu_sq"] >= 0.8053


def test_the_page_has_an_offer_as_it_is_shown(tmp_path):
    shape = Shape(sizes={"north": 300, "south": 200, "west": 120}, num_features=4, num_classes=2)
    study = {"name": "Readmission after heart failure", "purpose": "To find which patients a visit helps."}
    asked = one_server.offer("north", num_rounds=30, shape=shape, weights=(0.5, 0.3, 0.2), study=study)
    config = load_config(enrolled_silo(tmp_path, "north", n=300, approve="ask"))
    with calling(config) as caller:
        caller.refused("offer", **asked.model_dump(mode="json"))
    ((command, shown),) = [
        each for each in pages.outputs(pages.text("docs/deployment.md")).items() if "offers" in each[0]
    ]
    assert command.startswith("fedsim offers show state ")
    printed = _offers("show", config.state, named(asked.text)).output
    assert pages.disagreement(shown, printed) is None, printed


def test_what_an_account_cannot_carry_any_more_is_said(caller, config):
    with_all = [offer(number, epsilon=4.0, delta=1e-5) for number in (2, 3, 4)]
    for head in with_all:
        caller.refused("offer", **head)
        assert _offers("approve", config.state, digest(head)).exit_code == 0
    for head in with_all:
        caller.send("offer", **head)
    assert "lifetime budget cannot carry this run" in _offers("show", config.state, FIRST).output


def test_what_cannot_be_decided_is_one_line_and_changes_nothing(caller, config):
    state = config.state
    before = caller.silo.ledger.head
    for wrong in ("ff" * 8, FIRST[:7], "", "nonsense"):
        for command in ("show", "approve", "refuse"):
            assert "0 begin so" in refused(command, state, wrong)
    assert "--reason" in refused("refuse", state, FIRST, "--reason", "a\nb")
    assert "--reason" in refused("refuse", state, FIRST, "--reason", "a" * 201)
    assert [file.name for file in (state / "offers").iterdir()] == [f"{FIRST}.json"]
    _offers("approve", state, FIRST)
    assert "was approved before" in refused("approve", state, FIRST)
    _offers("refuse", state, FIRST, "--reason", "not now")
    assert "was refused before" in refused("approve", state, FIRST)
    assert "was refused before" in refused("refuse", state, FIRST)
    assert caller.refused("offer", **offer()) == "the silo's operator has refused it: not now"
    assert caller.silo.ledger.head == before
    assert "there is none" in refused("list", state / "nothing")


@pytest.mark.parametrize("command", ["approve", "refuse"])
def test_what_cannot_be_printed_is_not_decided(caller, config, command, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rich.console.Console.print", full)
        assert _offers(command, config.state, FIRST).exit_code == 1
    assert PendingOffers(config.state).decision(FIRST) == ("", "")
    offered, decided = _offers(command, config.state, FIRST).output.split("d " + FIRST[:16])
    assert offered.startswith(f"Offer {FIRST[:16]} to silo silo-00")
    assert "Readmission" in offered
    assert "its server" in decided


def test_a_lapsed_offer_is_not_approved(caller, config, monkeypatch):
    now = caller.silo.ledger.now()
    monkeypatch.setattr("silos.vault.journal.Clock.now", lambda clock: now + 7 * DAY)
    assert "lapsed on" in refused("approve", config.state, FIRST)
    assert _offers("list", config.state).output == "No offer waits.\n"


def test_digits_of_two_offers_name_none(caller, config):
    """A server can make such digests: what is shown and copied has 16 digits."""
    (file,) = (config.state / "offers").iterdir()
    tree = json.loads(file.read_text())
    for number in range(10**5):
        text = json.dumps(offer(2) | {"session": f"{number:064x}"})
        if named(text)[:2] == FIRST[:2]:
            break
    tree["offer"] = text
    (file.parent / f"{named(text)}.json").write_text(json.dumps(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsim.cli.offers._LEAST", 2)
        assert "2 begin so" in refused("approve", config.state, FIRST[:2])
    assert _offers("approve", config.state, FIRST[:8]).exit_code == 0


def test_an_offer_is_tried_out_beside_the_daemon_and_without_it(config, tmp_path):
    file, silo = tmp_path / "offer.json", tmp_path / "silo-00" / "silo.yaml"

    def check(**changes: Any) -> Any:
        file.write_text(json.dumps(offer(7, **changes)))
        return _offers("check", file, "--config", silo)

    alone = check()
    assert alone.exit_code == 0, alone.output
    assert "it would wait for the operator. Nothing" in " ".join(alone.output.split())
    with calling(config) as caller:
        before = caller.silo.ledger.head
        assert check().output == alone.output
        assert caller.silo.ledger.head == before
        assert not (config.state / "offers").exists()
        reason = caller.refused("offer", **offer(7, noise_multiplier=0.1))
        done = check(noise_multiplier=0.1)
        assert (done.exit_code, done.stderr) == (2, f"refused: {reason}\n")
        caller.refused("offer", **offer(7))
        _offers("approve", config.state, digest(offer(7)))
        caller.admitted(offer(7))
        assert "knows the session" in check().stderr
    assert "offer.study.name" in check(study={"name": "a\nb"}).stderr
    file.write_text("[1]")
    assert "OFFER.json" in refused("check", file, "--config", silo)


def test_reading_and_deciding_load_no_torch(caller, config):
    commands = [["list"], ["show", FIRST], ["approve", FIRST]]
    code = (
        "from typer.testing import CliRunner; from fedsim.cli.main import app\n"
        f"for name, *rest in {commands!r}:\n"
        f"    done = CliRunner().invoke(app, ['offers', name, {str(config.state)!r}, *rest])\n"
        "    assert done.exit_code == 0, done.output"
    )
    assert_not_loaded(code, "torch flwr ray")
