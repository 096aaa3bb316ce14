"""`fedsim audit`: what it prints, its JSON, its exit code, and the page of a run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.scenarios import SMALL, invoke, refusal, run, simulate, write

from fedsim.protocol.plan import Admitted
from fedsim.report.audit import FILE
from fedsim.testing.attacks import audit as audit_run

NO_NOISE = "privacy={epsilon: unlimited, calibration: sigma, noise_multiplier: 1e-120}"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("audited"), SMALL)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("scenario"), SMALL)


def _audit(*arguments: object, code: int = 0) -> Result:
    result = run("audit", *arguments, "--effort", "0.01")
    assert result.exit_code == code, result.output
    return result


def test_json_has_for_each_silo_claim_attained_and_ratios(scenario: Path) -> None:
    found = json.loads(_audit(scenario, "--json").stdout)
    assert not found["broken"]
    assert [silo["name"] for silo in found["silos"]] == ["silo-00", "silo-01", "silo-02"]
    for silo, epsilon in zip(found["silos"], [1.0, 2.0, 4.0], strict=True):
        assert silo["claimed"] == pytest.approx(epsilon, rel=1e-6)
        assert silo["claimed"] <= epsilon
        assert 0 <= silo["attained"] < 2 * epsilon
        assert 0.9 < silo["sensitivity_ratio"] <= 1 + 1e-6
        assert silo["cross_silo_ratio"] <= 1e-6
        assert silo["findings"] == []
        for adversary in ("worst_server", "honest_server", "model"):
            assert {"attained", "assumption_free", "plan_curve", "mean_difference", "runs"} <= set(
                silo[adversary]
            )
    assert found["confidence"]["bound"] == 0.95


def test_the_same_command_finds_the_same(scenario: Path) -> None:
    first, second = (_audit(scenario, "--json") for _ in range(2))
    assert first.stdout == second.stdout


def test_the_table_says_what_was_tried(scenario: Path) -> None:
    output = _audit(scenario).output
    said = ("silo-02", "95% confidence", "without any assumption", "its sensitivity", "No claim is broken")
    assert [words for words in said if words not in output] == []


def test_a_person_in_place_of_a_record_is_shown_beside_what_the_claim_is_worth(scenario: Path) -> None:
    output = _audit(scenario, "--unit", "person", "--records", "20").output
    said = ("to a person", "(20)", "a person of 20 records loses: no violation", "No claim is broken")
    assert [words for words in said if words not in output] == []


def test_a_broken_claim_is_exit_code_1_and_says_why(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is for epsilon 60 and said to cost 0.5: 25 runs a world show it, with power 1 - 1e-6."""
    real = audit_run.prepare

    def lying(resolved: Any) -> Any:
        setting = real(resolved)
        said = tuple(Admitted(a.terms, a.noise_multiplier, 0.5, a.releases) for a in setting.admitted)
        return replace(setting, admitted=said)

    monkeypatch.setattr(audit_run, "prepare", lying)
    output = _audit(scenario, "--set", "privacy.epsilon=60", code=1).output
    assert "BROKEN" in output
    assert "runs prove an epsilon of at least" in output


@pytest.mark.usefixtures("drawn")
def test_the_page_of_a_run_takes_the_audit(audited: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(audited, tmp_path / "copy"))
    assert "What attacks attained" not in (copy / "report.html").read_text(encoding="utf-8")
    _audit("--run", copy)
    found = json.loads((copy / FILE).read_text(encoding="utf-8"))
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "What attacks attained" in page
    assert page.index('id="results"') < page.index('id="audit"')
    for silo in found["silos"]:
        assert silo["name"] in page[page.index('id="audit"') :]
    assert (copy / "figures" / "audit.png").exists()
    invoke("report", copy)
    assert (copy / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a scenario, or --run DIR"),
        (["SCENARIO", "--run", "nowhere"], "name a scenario, or --run DIR"),
        (["--run", "nowhere"], "no such directory"),
        (["--run", "RUN", "--set", "seed=1"], "a run has its scenario"),
        (["SCENARIO", "--set", "sweep={grid: {seed: [1, 2]}}"], "`fedsim sweep`"),
        (["SCENARIO", "--set", "privacy.mechanism=none"], "claims nothing"),
        (["SCENARIO", "--unit", "record"], "--unit is person"),
        (["SCENARIO", "--unit", "group"], "needs answers by group"),
        (["SCENARIO", "--set", NO_NOISE], "no finite epsilon"),
    ],
)
def test_what_cannot_be_audited_is_one_line(
    scenario: Path, audited: Path, arguments: list[str], words: str
) -> None:
    places = {"SCENARIO": str(scenario), "RUN": str(audited)}
    assert words in refusal("audit", *[places.get(argument, argument) for argument in arguments])
