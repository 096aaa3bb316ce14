"""A round's time is that of the round: neither what measures the model nor who looks at it is in it."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.scenarios import SMALL

from fedsim.measure.evaluator import Evaluator
from fedsim.results.outcome import Results
from fedsim.results.record import Measurement
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import trial
from fedsim.simulation.host import SiloHost


def test_seconds_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def taking(seconds: float, method: Callable[..., Any]) -> Callable[..., Any]:
        def longer(*arguments: Any, **more: Any) -> Any:
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
