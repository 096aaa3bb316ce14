"""The audit on a run's page: rounded the right way, and nothing in it becomes markup."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.browser import BINARY, assert_fits, chromium
from support.scenarios import HOSTILE

from fedsim.common.errors import InputError
from fedsim.report.audit import FILE
from fedsim.report.page import write_page


def _attained(value: float) -> dict[str, Any]:
    return {"attained": value, "estimator": "mean difference", "runs": [100, 100], "assumption_free": 0.0}


def _silo(name: str, claimed: float, **changes: Any) -> dict[str, Any]:
    adversaries = {key: _attained(claimed * share) for key, share in SHARES.items()}
    row = {"name": name, "claimed": claimed, "attained": claimed * 0.93, "sensitivity_ratio": 0.99999999}
    return row | {"cross_silo_ratio": 0.0, "noise_ratio": 1.0, "findings": []} | adversaries | changes


SHARES = {"worst_server": 0.93777, "honest_server": 0.512, "model": 0.2}


def _with_audit(run: Path, folder: Path, silos: list[dict[str, Any]], broken: bool = False) -> Path:
    copy = Path(shutil.copytree(run, folder / "copy"))
    confidence = {"bound": 0.95, "false_alarm": 1e-4}
    tree = {"broken": broken, "of_silos": len(silos), "confidence": confidence, "silos": silos}
    (copy / FILE).write_text(json.dumps(tree), encoding="utf-8")
    write_page(copy)
    return copy


def _text(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")


def test_claims_are_rounded_up_and_attained_bounds_down(small_run: Path, tmp_path: Path) -> None:
    copy = _with_audit(small_run, tmp_path, [_silo("silo-00", 1.00001), _silo("silo-01", 1.999)])
    text = _text(copy)
    assert (
        "<td>1.01</td><td>0.937 (93 %)</td><td>0.512 (51 %)</td><td>0.2 (20 %)</td><td>1</td><td>0</td>"
        in text
    )
    assert "<td>2</td><td>1.87 (93 %)</td>" in text
    assert "No claim is broken by what was tried" in text


def test_a_bound_above_its_claim_is_chance_where_nothing_is_broken(small_run: Path, tmp_path: Path) -> None:
    above = {"worst_server": _attained(1.026)}
    silos = [_silo("silo-00", 1.0, **above), _silo("silo-01", 1.0, **above, findings=["half of the noise"])]
    text = _text(_with_audit(small_run, tmp_path, silos, broken=True))
    assert text.count("<td>1.02 (102 %, by chance)</td>") == text.count("<td>1.02 (102 %)</td>") == 1


def test_a_broken_claim_stands_out(small_run: Path, tmp_path: Path) -> None:
    row = _silo("silo-00", 1.0, sensitivity_ratio=None, findings=["one record <b>decides</b>"])
    copy = _with_audit(small_run, tmp_path, [row], broken=True)
    text = (copy / "report.html").read_text(encoding="utf-8")
    assert text.index('<p class="notice bad">BROKEN') < text.index('id="results"')
    assert "one record &lt;b&gt;decides&lt;/b&gt;" in text
    assert "<td>infinite</td>" in text


def test_a_silo_that_was_never_there_has_no_honest_transcript(small_run: Path, tmp_path: Path) -> None:
    copy = _with_audit(small_run, tmp_path, [_silo("silo-00", 1.0, honest_server=None, model=None)])
    assert "<td>none</td><td>none</td>" in (copy / "report.html").read_text(encoding="utf-8")


def test_a_damaged_audit_is_named(small_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "copy"))
    for text in ("{", "{}", '{"broken": false, "silos": 3}'):
        (copy / FILE).write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"audit\.json.*not an audit"):
            write_page(copy)


@pytest.mark.usefixtures("drawn")
@pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_the_section_fits_a_window(small_run: Path, tmp_path: Path, width: int) -> None:
    silos = [_silo(name, 0.5 + place) for place, name in enumerate(HOSTILE)]
    copy = _with_audit(small_run, tmp_path, silos)
    with chromium() as tab:
        assert_fits(tab.view(copy / "report.html", width), width)
