"""The round loop, from broadcasts to the model, against a link that is not a silo."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import asking, drive, open_gate, public_of, scripted, silos_of
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.problems.regularisers import Box
from fedsim.protocol.contract import Asker, Memory, Public, Round, ServerHalf
from fedsim.protocol.links import Answered
from server.aggregate import weighted
from server.loop import Kept, run

WEIGHTS = (0.5, 0.2, 0.3)
CENTRES = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])


@dataclass(frozen=True)
class Walk:
    """w <- w - step m, and the answer is minus w."""

    num_rounds: int = 4

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        for r in range(self.num_rounds):
            mean = yield Round({"w": w, "round": torch.full_like(w, r)}, answer=-w)
            w = w - 0.5 * mean["m"]
        return w * 10

    def silo(
        self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        raise AssertionError("the server runs no silo method")


@dataclass
class FakeLink:
    """Silo i answers w - c_i."""

    calls: list[tuple[int, list[float], list[int]]] = field(default_factory=list)
    refuse_at: int = -1

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        if round_index == self.refuse_at:
            raise Refused("no budget")
        assert broadcast["round"].tolist() == [round_index] * 2
        self.calls.append((round_index, broadcast["w"].tolist(), list(members)))
        return Answered(members, {"m": broadcast["w"] - torch.from_numpy(CENTRES[list(members)])})


PROBLEM = LinearRegression(2, composite=Composite(constraint=Box(0.1, 9.0)))
ROUNDS = [[0, 1, 2], [1], [0, 2], [0, 1, 2]]


def test_the_loop_drives_the_coroutine_to_its_end():
    link = FakeLink()
    events = list(run(Walk(), PROBLEM, public_of((5, 5, 5), WEIGHTS), 0, link, ROUNDS, weighted))
    w = np.array([0.1, 0.1])  # zero, projected on the constraint set
    for r, members in enumerate(ROUNDS):
        assert link.calls[r][0] == r
        assert link.calls[r][2] == members
        np.testing.assert_allclose(link.calls[r][1], w, atol=1e-15)
        assert (events[r].rounds, events[r].participants) == (r, len(members))
        np.testing.assert_allclose(events[r].answer, -w, atol=1e-15)
        present = np.array(WEIGHTS)[members]  # N p_i / M_r, which sums to 1 only where all take part
        w = w - 0.5 * 3 / len(members) * present @ (w - CENTRES[members])
    assert len(events) == len(link.calls) + 1 == 5
    assert (events[4].rounds, events[4].participants) == (4, 3)
    np.testing.assert_allclose(events[4].answer, 10 * w, atol=1e-14)


def test_a_refusal_names_the_round():
    link = FakeLink(refuse_at=2)
    events = run(Walk(), PROBLEM, public_of((5, 5, 5), WEIGHTS), 0, link, ROUNDS, weighted)
    with pytest.raises(Refused, match="round 2: no budget"):
        list(events)
    assert [call[0] for call in link.calls] == [0, 1]


@dataclass(frozen=True)
class Drawing(Walk):
    """Shows the server method's randomness."""

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        yield Round({"w": w, "round": w * 0}, answer=torch.from_numpy(rng.normal(size=2)))
        return torch.from_numpy(rng.normal(size=2))


def test_the_server_half_draws_from_the_public_seed():
    def answers(seed: int) -> Tensor:
        events = run(Drawing(), PROBLEM, public_of((5, 5, 5)), seed, FakeLink(), [[0, 1, 2]], weighted)
        return torch.cat([event.answer for event in events])

    assert torch.equal(answers(1), answers(1))
    assert not torch.equal(answers(1), answers(2))


def test_the_loop_passes_a_gates_refusal_on():
    problem = LinearRegression(3)
    algorithm = scripted(asking(), 3)
    gate = open_gate(silos_of(problem, (4, 4)), problem, algorithm, rounds=[[0, 1, 2], [0, 2]])
    with pytest.raises(Refused, match="round 1: silo 'silo1'"):
        drive(gate, algorithm, problem, public_of((4, 4)), [[0, 1]] * 3)


@dataclass
class SomeAnswer(FakeLink):
    """The silos that are there answer."""

    there: list[list[int]] = field(default_factory=list)

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        asked = super().answer(round_index, broadcast, members)
        came = [m for m in members if m in self.there[round_index]]
        rows = [list(members).index(m) for m in came]
        away = {m: "away" for m in members if m not in came}
        return Answered(came, {"m": asked.messages["m"][rows]}, away)


def test_a_round_is_an_average_over_those_who_answered():
    there = [[0, 1, 2], [1, 2], [2], [0]]
    link = SomeAnswer(there=there)
    everyone = [[0, 1, 2]] * 4
    events = list(run(Walk(), PROBLEM, public_of((5, 5, 5), WEIGHTS), 0, link, everyone, weighted))
    w = np.array([0.1, 0.1])
    for r, members in enumerate(there):
        np.testing.assert_allclose(link.calls[r][1], w, atol=1e-15)
        present = np.array(WEIGHTS)[members]
        w = w - 0.5 * 3 / len(members) * present @ (w - CENTRES[members])
        last = events[r + 1].last
        assert last is not None
        assert (last.members, set(last.left_out)) == (members, {0, 1, 2} - set(members))
    np.testing.assert_allclose(events[4].answer, 10 * w, atol=1e-14)


@dataclass(frozen=True)
class Epochs(Walk):
    """Two epochs of three rounds, whose silos are held."""

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        for r in range(6):
            kind: Any = "hold" if r % 3 else "resample"
            yield Round({"w": w, "round": torch.full_like(w, r)}, answer=w, participants=kind)
        return w


def test_an_epoch_asks_those_who_answered_its_first_round():
    there = [[0, 2], [2], [0, 1, 2], [0, 1, 2], [1], [0, 1, 2]]
    link = SomeAnswer(there=there)
    everyone = [[0, 1, 2]] * 6
    list(run(Epochs(), PROBLEM, public_of((5, 5, 5), WEIGHTS), 0, link, everyone, weighted))
    asked = [call[2] for call in link.calls]
    assert asked == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@dataclass
class Rounds:
    """A journal in memory, of which another process's rounds are read first."""

    old: list[Kept] = field(default_factory=list)
    new: list[Kept] = field(default_factory=list)

    def next(self) -> Kept | None:
        return self.old.pop(0) if self.old else None

    def append(self, kept: Kept) -> None:
        self.new.append(kept)


def models(link: FakeLink, journal: Rounds) -> list[list[float]]:
    public, everyone = public_of((5, 5, 5), WEIGHTS), [[0, 1, 2]] * 4
    events = run(Walk(), PROBLEM, public, 0, link, everyone, weighted, journal)
    return [event.answer.tolist() for event in events]


@pytest.mark.parametrize("ended", range(5))
def test_a_journal_takes_the_place_of_its_rounds(ended):
    whole = Rounds()
    unbroken = models(FakeLink(), whole)
    assert len(whole.new) == 4
    link, rest = FakeLink(), Rounds(whole.new[:ended])
    assert models(link, rest) == unbroken
    assert [call[0] for call in link.calls] == list(range(ended, 4))
    assert [kept.broadcast for kept in rest.new] == [kept.broadcast for kept in whole.new[ended:]]


def test_a_journal_keeps_a_round_before_the_next_is_asked():
    journal = Rounds()
    with pytest.raises(Refused, match="round 2"):
        models(FakeLink(refuse_at=2), journal)
    assert len(journal.new) == 2


def test_a_journal_of_another_run_is_refused():
    whole = Rounds()
    models(FakeLink(), whole)
    whole.new[1] = whole.new[1]._replace(broadcast="00" * 32)
    with pytest.raises(InputError, match="round 1': the journal's round is not this run's"):
        models(FakeLink(), Rounds(whole.new))
