"""The malicious server against daemons' sockets: sound daemons pass, broken ones are caught.

Daemons draw real noise, so what is said of them is said by chance: false alarms at 1e-6, power as computed.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import yaml
from scipy import stats
from support.audit_settings import SMALL, power, setting_of
from support.daemons import daemons
from support.half_noise import halve
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError
from fedsim.deployment.offers import offers_of
from fedsim.privacy import gaussian
from fedsim.testing.attacks import daemon_pair
from fedsim.testing.attacks.daemons import DaemonAudit, attack
from fedsim.testing.attacks.neighbours import WORLDS, neighbours, write
from fedsim.testing.attacks.setting import Setting
from silos.front.config import load_config
from silos.front.enrolment import enrol

SILO, ROUNDS, RUNS, FALSE_ALARM = 2, 2, 25, 1e-6
WIDE: dict[str, Any] = {
    "data": {"name": "synthetic", "rows": 60, "features": 10},
    "algorithm": {"num_rounds": ROUNDS},
}


def _audited(folder: Path, before: Callable[[], None] | None = None, **changes: Any) -> DaemonAudit:
    """25 runs a world with daemons that are broken by `before`."""
    setting, files = _written(folder, **changes)
    with _running(files, before):
        return _attacked(setting, folder)


def _written(folder: Path, **changes: Any) -> tuple[Setting, list[Path]]:
    setting = setting_of(**(WIDE | changes))
    return setting, write(setting, neighbours(setting, SILO), folder)


@contextmanager
def _running(
    files: list[Path], before: Callable[[], None] | None = None, insecure: bool = False
) -> Iterator[None]:
    for file in files:
        enrol(load_config(file))
    with daemons(*files, insecure=insecure, start=False) as made:
        for silo in made.values():
            silo.start(before, wait=False)
        for silo in made.values():
            silo.until_it_listens()
        yield


def _attacked(setting: Setting, folder: Path, share: float = 0.001) -> DaemonAudit:
    found = neighbours(setting, SILO)
    offers = offers_of(setting.resolved, token_hex(32), setting.schedule)
    offer, openings = offers[setting.resolved.names[SILO]], daemon_pair.daemons(setting, found, folder)
    return attack(setting, found, offer, openings, share, alarm=FALSE_ALARM)


@pytest.mark.slow
def test_sound_daemons_are_not_called_broken(folder):
    found = _audited(folder)
    assert found.findings == ()
    assert found.worst.runs == (RUNS, RUNS)
    assert found.admission.epsilon_guaranteed == pytest.approx(4.0, rel=1e-3)
    numbers = RUNS * ROUNDS * 11
    assert found.noise.ratio == pytest.approx(1.0, abs=5.5 / math.sqrt(2 * numbers))  # by chance: 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["fresh", "subsample", "with_replacement"])
def test_so_are_those_that_sample(folder, sampler):
    batch = {"sampler": sampler, "fraction": 0.25}
    found = _audited(folder, algorithm={"num_rounds": ROUNDS, "batch": batch})
    assert found.findings == ()


def test_half_of_the_noise_is_seen_in_replies(folder):
    """Power: 550 numbers; half the noise exceeds the chi-square bound with P < 1e-9."""
    least = stats.chi2.ppf(FALSE_ALARM / 2 / 10 / 2, RUNS * ROUNDS * 11)
    assert stats.chi2.sf(least / 0.25, RUNS * ROUNDS * 11) < 1e-9
    found = _audited(folder, halve)
    assert any("times the noise that is stated" in finding for finding in found.findings)


@pytest.mark.slow
def test_runs_alone_prove_daemons_of_half_the_noise_broken(folder, monkeypatch):
    """With 1,000 runs a world, at a true mu of twice the claimed one; power above 1 - 1e-6.

    More runs than a lifetime has room for: the audit enrols and starts the daemons again and again.
    """
    setting = setting_of(algorithm={"num_rounds": 1})
    assert power(float(gaussian.mu(4.0, 1e-3)), 1000, FALSE_ALARM / 2) > 1 - 1e-6
    broken = Path(__file__).parents[1] / "support" / "half_noise.py"
    monkeypatch.setattr(daemon_pair, "COMMAND", [sys.executable, str(broken)])
    found = _attacked(setting, folder, 0.401)
    assert found.worst.runs[0] >= 1000
    assert any("runs prove" in finding for finding in found.findings)


def _forget() -> None:
    """A ledger that finds nothing: every round is answered, whatever was said before."""
    from silos.vault.ledger import RunLedger

    RunLedger.find = lambda self, round_index, digest: None
    RunLedger.debit = _unpaid


def _unpaid(self: Any, round_index: int, digest: bytes) -> None:
    self.record.rounds.pop(round_index, None)
    self._file.note("debited", {"run": self.run, "round": round_index, "broadcast": digest.hex()})


def test_a_second_answer_to_a_round_is_found(folder):
    found = _audited(folder, _forget)
    assert "round 0: a second broadcast was answered" in found.findings
    assert "round 0: the same broadcast was answered with other bytes" in found.findings


def test_daemons_with_a_seed_are_refused(folder):
    setting, files = _written(folder)
    for file in files:
        tree = yaml.safe_load(file.read_text()) | {"insecure_simulation": {"seed": 1, "run": "0" * 64}}
        file.write_text(yaml.safe_dump(tree))
    with _running(files, insecure=True), pytest.raises(InputError, match="without --insecure-simulation"):
        _attacked(setting, folder)


def test_daemons_of_another_scenario_are_refused(folder):
    _, files = _written(folder)
    with _running(files), pytest.raises(InputError, match="daemons of"):
        _attacked(setting_of(data={"name": "synthetic", "rows": 60, "features": 4}), folder)


def test_a_daemon_alone_is_refused(folder):
    setting, files = _written(folder)
    with _running(files[:1]), pytest.raises(InputError, match="both world-0 and world-1, or in neither"):
        _attacked(setting, folder)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"batch": {"sampler": "poisson", "fraction": 0.5}}, "full, fresh, subsample"),
        (
            {"name": "local_sgd", "num_rounds": 1, "local_steps": 2, "step_size": 0.5, "clip_norm": 1.0},
            "the answer to one query a round",
        ),
    ],
    ids=["poisson", "local_sgd"],
)
def test_what_cannot_be_played_over_sockets_is_said(algorithm, expected):
    with pytest.raises(InputError, match=expected):
        neighbours(setting_of(algorithm=algorithm), SILO)


@pytest.mark.slow
def test_the_command_starts_daemons_and_ends_them(folder):
    scenario = folder / "small.yaml"
    scenario.write_text(yaml.safe_dump(SMALL))
    given = ["audit", str(scenario), "--daemons", str(folder), "--silo", "silo-02", "--effort", "0.01"]
    result = CliRunner().invoke(app, [*given, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["silo"] == "silo-02"
    assert found["claimed"] == pytest.approx(4.0, rel=1e-3)
    assert min(found["runs"]) >= RUNS
    assert not any((folder / world / "silo.sock").exists() for world in WORLDS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--daemons", "x"], "name the scenario"),
        (["--silo", "x"], "--daemons DIR"),
        (["breast_cancer", "--daemons", "x", "--silo", "y"], "must be one of silo-00"),
        (["--run", "x", "--daemons", "x"], "give one of them"),
    ],
)
def test_wrong_options_are_one_line(given, expected):
    result = CliRunner().invoke(app, ["audit", *given])
    assert result.exit_code == 2
    assert expected in result.stderr
