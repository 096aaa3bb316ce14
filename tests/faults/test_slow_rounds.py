"""A round that takes minutes: other runs are answered meanwhile, and SIGTERM ends the daemon."""

import threading
from collections.abc import Iterator

import pytest
import torch
import yaml
from support.breaking import unbounded_rounds
from support.daemons import FEATURES, Silo, daemons, short_folder, write_silo
from support.one_server import OneServer, frame, offer
from support.plug_in_folder import plug_in_folder

from fedsim.isolated.confine import unavailable
from fedsim.wire.messages import Ask
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.vault.book import read

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

N, DIMENSION = 10_000, FEATURES + 1 + 2
NETWORK = {"name": "neural_network", "model": {"name": "module", "path": "theirs:Slow"}}
SLOW = """
import torch

class Slow(torch.nn.Module):  # some hundredths of a second a record
    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("many", torch.linspace(1, 2, 50_000))

    def forward(self, x):
        values = (x @ self.weight)[:, None] * self.many
        for _ in range(10):
            values = torch.lgamma(values.abs() + 1)
        return values.mean(1, keepdim=True) + self.bias
"""


@pytest.fixture
def silo() -> Iterator[Silo]:
    """A silo that lists the network, and is not started."""
    with short_folder() as folder:
        file = write_silo(folder, n=N, plug_ins=["theirs:Slow"])
        listed = {"plug_in_folder": str(plug_in_folder(folder / "plug-ins", SLOW))}
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | listed))
        enrol(load_config(file))
        with daemons(file, start=False) as made:
            yield made[file.parent.name]


def test_a_round_of_minutes_keeps_no_other_run_and_no_signal_waiting(silo: Silo):
    silo.start(unbounded_rounds)
    served: list[bytes] = []
    with OneServer(silo.socket, silo.identity) as slow, OneServer(silo.socket, silo.identity) as other:
        assert slow.offer(offer(n=N, problem=NETWORK, epsilon=1.0)).kind == "admission"
        assert other.offer(offer(n=N, session=2, epsilon=1.0)).kind == "admission"
        point = {"w": torch.ones(DIMENSION, dtype=torch.float64)}
        data = frame(Ask(run=slow.run, round=0, head=slow.head), point)
        waiting = threading.Thread(target=lambda: served.append(slow.exchange(data)))
        waiting.start()
        silo.until_it_says("at a round")
        with OneServer(silo.socket, silo.identity) as impatient:  # the same round again is not begun again
            answer = impatient.said(data)
            assert (answer.kind, answer.head["again"]) == ("refusal", True)
        first = other.ask(0)
        assert (first.kind, served) == ("reply", [])
        assert silo.process is not None
        silo.process.terminate()
        silo.process.join(10)
        assert silo.process.exitcode == 0
        waiting.join()
        assert served == [b""]
        other.close_connection()
    rounds = {run: record.rounds[0] for run, record in read(silo.ledger).runs.items()}
    assert rounds[slow.run].reply is None  # paid for, and over
    assert rounds[other.run].reply is not None


def test_such_a_plan_is_refused_before_it_is_paid_for(silo: Silo):
    silo.start()
    with OneServer(silo.socket, silo.identity) as server:
        reason = server.offer(offer(n=N, problem=NETWORK)).head["reason"]
        assert f"for {N:,} records" in reason
        assert "at most 60" in reason
        assert "\n" not in reason
    assert silo.stop() == 0
    assert not read(silo.ledger).runs
