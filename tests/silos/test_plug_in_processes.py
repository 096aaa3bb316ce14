"""Plug-in algorithms of a deployed silo run in a confined process, and what such a process may do wrong."""

import os
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import yaml
from support.deployed import Caller, enrolled, offer_of, write_silos
from support.plug_in_folder import RESOLVED, SGD, opened, plug_in_folder, plug_in_silo, sgd_offer, sgd_silo

from fedsim.common.errors import InputError
from fedsim.isolated import confine
from fedsim.isolated.confine import unavailable
from fedsim.isolated.parts import Isolated
from silos.front.config import load_config
from silos.front.pending import PendingOffers
from silos.front.silo import Silo
from silos.vault.approvals import APPROVED
from silos.vault.ledger import RunLedger

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

POINT = torch.zeros(5, dtype=torch.float64)
NETWORK = {"name": "neural_network", "model": {"name": "module", "path": "theirs:Net"}}
HONEST = (
    f"import os, time\n{SGD}"
    + """
    def silo(self, problem, broadcast, ask, memory):
        BEFORE
        answer = ask(Query("gradient", (broadcast["w"],), self.clip_norm))
        AFTER
        return {"g": answer}
"""
)


TOO_LONG = """
import sys
from fedsim.isolated.data import queries_out

def too_long(queries):
    head, arrays = queries_out(queries)
    head["ask"]["queries"][0]["statistic"] = "x" * 10**6
    return head, arrays
"""


def _code(before: str = "pass", after: str = "pass") -> str:
    return HONEST.replace("BEFORE", before).replace("AFTER", after)


def _sgd(folder: Path, code: str) -> Caller:
    return opened(sgd_silo(folder, code))


def _isolated(caller: Caller, run: str) -> Isolated:
    algorithm: Any = caller.silo._runs._held[run].proposal.algorithm
    assert isinstance(algorithm, Isolated)
    return algorithm


def test_a_plug_in_is_answered_and_this_process_never_imports_it(tmp_path):
    caller = _sgd(tmp_path, _code())
    run = caller.admitted(sgd_offer())["run"]
    answer = caller.asked(run, 0, w=POINT)
    assert answer["g"].shape == POINT.shape
    assert torch.equal(caller.asked(run, 0, w=POINT)["g"], answer["g"])
    assert caller.asked(run, 1, w=POINT + 1)["g"].isfinite().all()
    assert "theirs" not in sys.modules
    caller.silo.close()


FAILURES = [
    ("os._exit(0)", "pass"),
    ("pass", "os._exit(0)"),
    ("raise KeyError('x')", "pass"),
    ("os.write(1, b'x'); os.write(3, b'not a frame')", "pass"),
    ("time.sleep(120)", "pass"),
    ("pass", "ask(Query('gradient', (broadcast['w'],), self.clip_norm))"),
]


def test_a_process_that_fails_ends_its_round_and_no_other(tmp_path, monkeypatch):
    """Every second round fails, each in another way."""
    lines = [
        "\n        ".join(
            f"if bool(broadcast['w'].max() == {7 + i}): {way[k]}" for i, way in enumerate(FAILURES)
        )
        for k in (0, 1)
    ]
    caller = _sgd(tmp_path, _code(*lines))
    run = caller.admitted(sgd_offer(2 * len(FAILURES)))["run"]
    for i, (before, _) in enumerate(FAILURES):
        with monkeypatch.context() as patch:
            patch.setattr(_isolated(caller, run), "_seconds", 2.0 if "sleep" in before else 20.0)
            caller.refused("ask", {"w": POINT + 7 + i}, run=run, round=2 * i)
        assert caller.asked(run, 2 * i + 1, w=POINT)["g"].isfinite().all()
    caller.silo.close()


def test_a_plan_is_priced_and_kept_to_whatever_the_process_says(tmp_path):
    """It asks for less noise in the run than in the dry run."""
    wrong = "if bool(broadcast['w'].max() == 7): ask = lambda q, a=ask: a(Query(q.statistic, q.points, 1e5))"
    caller = _sgd(tmp_path, _code(wrong + "; object.__setattr__(self, 'clip_norm', 1e9)"))
    run = caller.admitted(sgd_offer())["run"]
    sent = caller.asked(run, 0, w=POINT + 7)["g"]  # noise scales with the clip that is asked for
    assert float(sent.norm()) > 1e3
    caller.silo.close()


def test_the_process_of_a_plug_in_that_waits_for_the_operator_has_ended(tmp_path):
    caller = opened(sgd_silo(tmp_path, _code(), approve="ask"))
    waiting = PendingOffers(tmp_path / "silos" / "silo-00" / "state")
    before = set(psutil.Process().children(recursive=True))
    with patch.object(confine, "Popen", wraps=confine.Popen) as started:
        assert "has to decide" in caller.refused("offer", **sgd_offer())
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, 10)
    assert (started.call_count, alive) == (1, [])
    (offer,) = waiting.all(0)
    waiting.decide(offer.digest, APPROVED)
    caller.asked(caller.admitted(sgd_offer())["run"], 0, w=POINT)
    caller.silo.close()


def test_a_round_whose_answer_a_plug_in_has_seen_is_not_drawn_anew(tmp_path, monkeypatch):
    """Else it would choose among answers for one debit: whether the silo came to a reply is its doing."""
    config = enrolled([sgd_silo(tmp_path, _code())])[0]
    caller = Caller(Silo.open(config))
    run = caller.admitted(sgd_offer())["run"]
    with monkeypatch.context() as patch:  # it dies between its answer and the stored reply
        patch.setattr(RunLedger, "store", lambda *_: None)
        caller.refused("ask", {"w": POINT}, run=run, round=0)
    caller.silo.close()
    caller = Caller(Silo.open(config))
    assert "came to no reply" in caller.refused("ask", {"w": POINT}, run=run, round=0)
    assert caller.asked(run, 1, w=POINT)["g"].isfinite().all()
    caller.silo.close()


def test_what_a_process_sends_has_bounds_before_it_is_kept(tmp_path):
    hidden = "if bool(broadcast['w'].max() == 7): "
    many = hidden + "return {str(i): answer for i in range(17)}"
    caller = _sgd(tmp_path / "many", _code(after=many))
    run = caller.admitted(sgd_offer())["run"]
    assert "17 tensors" in caller.refused("ask", {"w": POINT + 7}, run=run, round=0)
    assert caller.asked(run, 1, w=POINT)["g"].isfinite().all()
    caller.silo.close()
    longer = _code(before=hidden + "sys.modules['__main__'].data.queries_out = too_long") + TOO_LONG
    caller = _sgd(tmp_path / "long", longer)
    run = caller.admitted(sgd_offer())["run"]
    caller.refused("ask", {"w": POINT + 7}, run=run, round=0)
    assert len(caller.silo.ledger.book.runs[run].rounds[0].refusal) < 2_001
    caller.silo.close()


def test_a_plug_in_that_is_slow_to_be_made_holds_up_no_other_run(tmp_path):
    slow = "import time\ntime.sleep(5)\nopen('/none')"
    caller = opened(plug_in_silo(tmp_path, plug_in_folder(tmp_path / "plug-ins", slow), ["theirs:Net"]))
    run = caller.admitted(offer_of(RESOLVED, "silo-00"))["run"]
    offer = offer_of(RESOLVED, "silo-00", session="ab" * 32, problem=NETWORK)
    ended: list[float] = []
    other = Caller(caller.silo)
    trying = threading.Thread(target=lambda: ended.append(bool(other.refused("offer", **offer))))
    trying.start()
    while not caller.silo._runs._trying.locked():
        time.sleep(0.01)
    assert caller.asked(run, 0, w=POINT)["g"].isfinite().all()
    assert not ended  # the plug-in is still being made
    trying.join()
    caller.silo.close()


def test_a_plug_in_that_is_not_listed_or_not_installed_is_named(tmp_path):
    path = sgd_silo(tmp_path, _code())
    tree = yaml.safe_load(path.read_text())
    for change, field in (
        ({"plug_in_folder": None}, "silo.plug_in_folder"),
        ({"plug_in_folder": str(tmp_path / "nowhere")}, "silo.plug_in_folder"),
        ({"policy": {**tree["policy"], "plug_ins": ["other"]}}, "silo.policy.plug_ins"),
    ):
        path.write_text(yaml.safe_dump({**tree, **change}))
        with pytest.raises(InputError) as caught:
            load_config(path)
        assert caught.value.field == field
    path.write_text(yaml.safe_dump({**tree, "policy": {**tree["policy"], "plug_ins": False}}))
    caller = opened(path)
    assert "does not allow algorithm 'theirs_sgd'" in caller.refused("offer", **sgd_offer())
    caller.silo.close()


def _file_silo(folder: Path, code: str, **change: Any) -> Path:
    """The configuration of a silo that lists a class of the file own.py."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "own.py").write_text(code)
    path = plug_in_silo(folder, folder / "code", ["own.py:Sgd"])
    agreed = {"own.py": sha256((folder / "code" / "own.py").read_bytes()).hexdigest()}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "plug_in_files": agreed, **change}))
    return path


def _file_offer(name: str = "own.py:Sgd") -> dict[str, Any]:
    return {**sgd_offer(), "algorithm": {**sgd_offer()["algorithm"], "name": name}}


def test_a_class_of_a_listed_file_is_answered_and_this_process_never_imports_it(tmp_path):
    at_home, before = f"assert os.getpid() != {os.getpid()}", set(sys.modules)
    caller = opened(_file_silo(tmp_path, _code(at_home) + at_home))
    run = caller.admitted(_file_offer())["run"]
    assert caller.asked(run, 0, w=POINT)["g"].isfinite().all()
    assert isinstance(_isolated(caller, run), Isolated)
    assert not any(name.startswith("own_") for name in set(sys.modules) - before)
    caller.silo.close()


def test_an_offer_names_no_file_but_those_that_are_listed(tmp_path):
    caller = opened(_file_silo(tmp_path, _code()))
    (tmp_path / "code" / "other.py").write_text(_code())
    absolute = str(tmp_path / "code" / "own.py:Sgd")
    for name in ("other.py:Sgd", "own.py", "./own.py:Sgd", "../code/own.py:Sgd", absolute):
        assert "does not allow algorithm" in caller.refused("offer", **_file_offer(name))
    caller.silo.close()


def test_a_file_with_other_contents_than_agreed_is_not_started(tmp_path):
    caller = opened(_file_silo(tmp_path, _code()))
    (tmp_path / "code" / "own.py").write_text(_code("ask = None"))
    assert "plug_in_files.own.py" in caller.refused("offer", **_file_offer())
    caller.silo.close()


@pytest.mark.parametrize("agreed", [{}, {"own.py": "0" * 64}, {"own.py": "0" * 64, "../own.py": "0" * 64}])
def test_a_listed_file_needs_its_digest(tmp_path, agreed):
    with pytest.raises(InputError) as caught:
        load_config(_file_silo(tmp_path, _code(), plug_in_files=agreed))
    assert caught.value.field.startswith("silo.plug_in_files")


def test_a_folder_from_which_the_records_can_be_seen_is_refused(tmp_path):
    path = sgd_silo(tmp_path, _code())
    tree = yaml.safe_load(path.read_text())
    plug_in_folder(path.parent / "all", _code(), theirs_sgd="Sgd")
    path.write_text(yaml.safe_dump({**tree, "plug_in_folder": "all", "state": "all/state"}))
    with pytest.raises(InputError, match="must lie apart") as caught:
        load_config(path)
    assert caught.value.field == "silo.plug_in_folder"


LOSS = """
import torch
from dataclasses import dataclass
from fedsim.problems.glm import LogisticRegression

@dataclass(frozen=True)
class Loss(LogisticRegression):
    def coefficient(self, scores, target, inverse_norm):
        return BODY

class Net(torch.nn.Module):
    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.out = torch.nn.Linear(num_features, num_outputs)
        self.register_buffer("order", torch.arange(num_features))

    def forward(self, x):
        return self.out(torch.tanh(x[:, self.order]) * SCALE)
"""


def _with_problem(
    folder: Path, problem: dict[str, Any], listed: str, **code: str
) -> tuple[Caller, dict[str, Any]]:
    text = LOSS.replace("BODY", code.get("body", "torch.sigmoid(scores) - target"))
    text = text.replace("SCALE", code.get("scale", "2"))
    plug_ins = plug_in_folder(folder / "plug-ins", text, "fedsim.problems", theirs_loss="Loss")
    offer = offer_of(RESOLVED, "silo-00")
    offer["problem"] |= problem
    return opened(plug_in_silo(folder, plug_ins, [listed])), offer


LOGISTIC = {"name": "theirs_loss"}


@pytest.mark.parametrize(
    ("problem", "listed", "dimension"),
    [(LOGISTIC, "theirs_loss", 5), (NETWORK, "theirs:Net", 12)],
    ids=["loss", "network"],
)
def test_records_meet_operations_that_this_process_rebuilt(tmp_path, problem, listed, dimension):
    caller, offer = _with_problem(tmp_path, problem, listed)
    run = caller.admitted(offer)["run"]
    point = torch.full((dimension,), 0.1, dtype=torch.float64)
    assert caller.asked(run, 0, w=point)["g"].shape == point.shape
    held = caller.silo._vault._gates[run][0]
    assert type(held.problem).__module__.startswith("fedsim.problems.")
    assert "theirs" not in sys.modules
    caller.silo.close()


@pytest.mark.parametrize(
    ("problem", "listed", "code", "reason"),
    [
        (LOGISTIC, "theirs_loss", {"body": "scores * torch.rand_like(scores)"}, "rand"),
        (LOGISTIC, "theirs_loss", {"body": "scores if scores.max() > 0 else target"}, "must be"),
        (NETWORK, "theirs:Net", {"scale": "x.median()"}, "median"),
        (NETWORK, "theirs:Net", {"scale": "x.amax()"}, "mixes"),
        (NETWORK, "theirs:Other", {}, "does not list"),
    ],
)
def test_operations_outside_the_table_are_refused(tmp_path, problem, listed, code, reason):
    caller, offer = _with_problem(tmp_path, problem, listed, **code)
    assert reason in caller.refused("offer", **{**offer, "head": caller.head})
    caller.silo.close()


def test_a_daemon_imports_no_entry_point_of_its_own_installation(tmp_path):
    folder = plug_in_folder(tmp_path / "installed", "raise SystemExit('imported')", theirs_sgd="Sgd")
    path = write_silos(tmp_path / "silos", RESOLVED)[0]
    command = [sys.executable, "-m", "silos", "--config", str(path), "--enrol"]
    paths = ":".join([str(folder), str(Path(__file__).parents[2])])
    found = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": paths}, timeout=120)
    assert found.returncode == 0, found.stderr
    simulated = [sys.executable, "-c", "import fedsim.scenario.algorithm"]
    other = subprocess.run(simulated, capture_output=True, text=True, env={"PYTHONPATH": paths}, timeout=120)
    assert "imported" in other.stderr + other.stdout  # the same entry point, where entry points are loaded
