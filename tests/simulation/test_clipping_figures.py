"""Counts of clipped terms: right in every kind of run, and made by a simulation alone."""

import ast
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.scenarios import SMALL

import fedsim
import silos
from fedsim.common.errors import Refused
from fedsim.measure.evaluator import Evaluator
from fedsim.problems.glm import LinearRegression
from fedsim.report.outcome import Results
from fedsim.report.record import Measurement
from fedsim.report.sections.training import ClippedRound
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import trial
from fedsim.simulation.clipping import MOST, ClippedTerms, Recorder, Watched, joined, together
from fedsim.simulation.host import MemoryLedger, SiloHost
from silos.vault.gate import lay_out

NORMS = [0.5, 1.0, 4.0, 0.0, 2.5]
"""Of the terms at w = 0 of records x = (1, 0), y = norm."""


def watched(norms: list[float], clip: float | torch.Tensor) -> ClippedTerms:
    recorder = Recorder()
    x = np.tile([1.0, 0.0], (len(norms), 1))
    records = Watched(recorder, [(x, np.array(norms))], LinearRegression(2), torch.float64)
    recorder.begin(3)
    records.clipped_sum(LinearRegression(2), records.full([0])[0], [torch.zeros(2).double()], clip)
    return recorder.rounds()[3]


def test_terms_and_clipped_terms_are_counted():
    part = watched(NORMS, 2.0)
    assert (part.terms, part.clipped) == (5, 2)
    assert np.median(part.ratios) == pytest.approx(0.5)


def test_of_many_terms_the_count_is_exact_and_the_median_of_some():
    part = watched(list(np.linspace(0, 2, 20_001)), 0.5)
    assert (part.terms, part.clipped) == (20_001, 15_000)
    assert MOST / 2 < len(part.ratios) <= MOST
    assert np.median(part.ratios) == pytest.approx(2.0, rel=0.01)


def test_hosts_together_say_what_one_host_would():
    rng = np.random.default_rng(0)
    few, many = rng.exponential(size=700), 3 + rng.exponential(size=7_000)
    parts = [ClippedTerms(len(v), int((v > 3).sum()), v[:: max(1, len(v) // MOST)]) for v in (few, many)]
    both = together([{0: parts[0], 4: parts[0]}, {0: parts[1]}])
    assert both[4] == parts[0]
    assert both[0].terms == 7_700
    assert np.median(both[0].ratios) == pytest.approx(np.median(np.concatenate([few, many])), rel=0.05)
    assert joined([parts[0]]) is parts[0]


NETWORK = {"name": "neural_network", "model": "mlp"}
SUMS = {"mechanism": "summed_gaussian", "epsilon": 4.0, "honest_fraction": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "local steps": {"algorithm": SMALL["algorithm"] | {"name": "local_sgd", "local_steps": 2}},
    "network": {"problem": NETWORK},
    "sums": {"privacy": SUMS},
    "softmax": {
        "problem": "softmax_regression",
        "data": {"name": "synthetic", "link": "softmax", "classes": 3, "rows": 120, "features": 3},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_says_what_its_clip_takes(kind):
    tree = SMALL | {"trials": 1, "privacy": {"epsilon": 4.0}} | KINDS[kind]
    shares = []
    for clip in (1e-6, 1e6):
        algorithm = tree["algorithm"] | {"clip_norm": clip, "step_size": 1e-9}
        run = fedsim.simulate(tree | {"algorithm": algorithm}, progress=False)
        rows = run.results.rows(ClippedRound)
        assert [row.round for row in rows] == list(range(1, 7))
        shares.append(np.mean([row.clipped for row in rows]))
        assert all((row.median_norm > 1) == (clip < 1) for row in rows)
        assert run.summary.clipping is not None
    assert shares == [1.0, 0.0]


def test_watching_changes_nothing_and_can_be_left_out():
    on, off = (fedsim.simulate(SMALL, {"report.clipping": on}, progress=False) for on in (True, False))
    assert np.array_equal(on.model, off.model)
    assert off.results.rows(ClippedRound) == []
    assert off.summary.clipping is None
    bare = fedsim.simulate(SMALL | {"privacy": {"mechanism": "none"}}, progress=False)
    assert bare.results.rows(ClippedRound) == []


MAKERS = ("clipped_sum", "network_sum", "_add_clipped", "bounded")


def test_a_deployed_silo_counts_no_terms():
    """Its records take no listener, and no code of a silo makes one: `seen` is only ever passed on."""
    records = lay_out([(np.eye(2), np.ones(2))], LinearRegression(2), torch.float64)
    block, points = records.full([0])[0], [torch.zeros(2).double()]
    with pytest.raises(TypeError):
        records.clipped_sum(LinearRegression(2), block, points, 1.0, print)
    (folder,) = silos.__path__
    given = [
        argument
        for file in Path(folder).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _name(call) in MAKERS
        for argument in [*call.args[3 + (_name(call) != "bounded") :], *(k.value for k in call.keywords)]
        if not isinstance(argument, ast.Compare | ast.Attribute)  # which chunk, and what a block is
    ]
    assert given
    assert {getattr(argument, "id", "another") for argument in given} == {"seen"}


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


# The ledger of a simulated silo.


def test_the_ledger_debits_before_it_knows_a_reply():
    ledger = MemoryLedger()
    assert ledger.find(4, b"a") is None
    assert ledger.debited == []
    ledger.debit(4, b"a")
    assert ledger.debited == [4]
    with pytest.raises(Refused, match="came to no reply"):
        ledger.find(4, b"a")
    with pytest.raises(Refused, match="paid for already"):
        ledger.debit(4, b"a")
    reply = {"g": torch.zeros(3)}
    ledger.store(4, reply, {})
    assert ledger.find(4, b"a") is reply
    with pytest.raises(Refused):
        ledger.find(4, b"b")
    ledger.debit(5, b"c")
    ledger.store(5, reply, {})
    with pytest.raises(Refused, match="only the last reply is kept"):
        ledger.find(4, b"a")
    assert ledger.debited == [4, 5]


# A round's time is that of the round: neither what measures the model nor who looks at it is in it.


def test_seconds_are_those_of_the_rounds(monkeypatch):
    clock = [0.0]

    def taking(seconds, method):
        def longer(*arguments, **more):
            clock[0] += seconds
            return method(*arguments, **more)

        return longer

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(SiloHost, "answer", taking(1.0, SiloHost.answer))
    monkeypatch.setattr(Evaluator, "__call__", taking(100.0, Evaluator.__call__))
    monkeypatch.setattr(Evaluator, "risk", taking(1e4, Evaluator.risk))
    seen: list[Measurement] = []
    trial.execute(resolve(parse(SMALL)), Results(), seen.append)
    assert len(seen) > 2
    assert [one.seconds for one in seen] == [one.round for one in seen]
