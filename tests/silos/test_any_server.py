"""Whatever a server says and whenever the process dies, the transcript, priced by itself, is as promised.

Hypothesis plays the server: offers, rounds in any order, again, with other broadcasts, of closed and open
runs, while the silo's process dies before and after writes, and is started again. What was sent is kept here
and nothing is asked of the silo's own books.
"""

import itertools
import tempfile
from collections import defaultdict
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.deployed import enrolled, offer_of, resolved_of, write_silos

from fedsim.privacy import gaussian
from fedsim.wire.frames import Frame, decode, encode, opened, sealed
from silos.front.silo import Silo

LIFE = {"epsilon": 1.0, "delta": 1e-4, "expires": "2999-12-31"}
PER_RUN = {"epsilon": 0.9, "delta": 1e-5}
MU = float(gaussian.mu(LIFE["epsilon"], LIFE["delta"]))
ROUNDS = 3
POINTS = [torch.full((5,), value, dtype=torch.float64) for value in (0.0, 1.0, -0.0)]
RESOLVED = resolved_of(
    algorithm={"name": "noisy_minibatch_sgd", "num_rounds": ROUNDS, "step_size": 0.5, "clip_norm": 1.0}
)


class _Death(BaseException):
    """The process is gone: nothing that it would have done on its way out is done."""


class AnyServer(RuleBasedStateMachine):
    """A server without a plan, and a silo that lives and dies."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        files = write_silos(Path(self.folder.name), RESOLVED, policy={"lifetime": LIFE, "per_run": PER_RUN})
        (self.config,) = enrolled(files[:1])
        self.silo = Silo.open(self.config)
        self.heads, self.runs = [""], ["00" * 32]
        self.admissions: dict[str, dict[str, Any]] = {}
        self.replies: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.answers: list[bytes] = []

    def teardown(self) -> None:
        self.silo.close()
        self.folder.cleanup()

    def said(self, kind: str, arrays: dict[str, torch.Tensor], **head: Any) -> Frame | None:
        """What leaves the silo, if it lives to say it."""
        try:
            body, _ = opened(self.silo.answer(sealed(encode(Frame(kind, head, arrays)))))
        except _Death:
            self._reborn()
            return None
        frame = decode(body)
        if "head" in frame.head:
            self.heads.append(frame.head["head"])
        if frame.kind == "reply":
            self.replies[frame.head["run"], frame.head["round"]].add(body)
        return frame

    def _reborn(self) -> None:
        self.silo.close()
        self.silo = Silo.open(self.config)

    @rule(
        session=st.integers(0, 9),
        epsilon=st.sampled_from([0.3, 50.0]),
        noise=st.sampled_from([None, None, 0.5, 8.0]),
        rounds=st.sampled_from([None, (0,), (0, 2)]),
        echo=st.integers(0, 50),
    )
    def offer(self, session: int, epsilon: float, noise: Any, rounds: Any, echo: int) -> None:
        """Of a session that may be known; the same session may come with other numbers."""
        named = offer_of(RESOLVED, RESOLVED.names[0], session=f"{session:064x}", epsilon=epsilon)
        head = self.heads[echo % len(self.heads)]
        frame = self.said(
            "offer", {}, **(named | {"noise_multiplier": noise, "rounds": rounds, "head": head})
        )
        if frame is not None and frame.kind == "admission":
            run = frame.head["run"]
            self.runs.append(run)
            known = self.admissions.setdefault(run, frame.head | {"rounds": rounds, "offered": epsilon})
            assert all(frame.head[key] == known[key] for key in frame.head)

    @rule(run=st.integers(-3, 20), r=st.integers(-1, ROUNDS), point=st.sampled_from(range(len(POINTS))))
    def ask(self, run: int, r: int, point: int) -> None:
        self.said(
            "ask", {"w": POINTS[point]}, run=self.runs[run % len(self.runs)], round=r, head=self.heads[-1]
        )

    @rule(session=st.integers(0, 9), point=st.sampled_from(range(len(POINTS))))
    def whole_run(self, session: int, point: int) -> None:
        """Two of them are more than the lifetime has room for."""
        self.offer(session, 50.0, None, None, -1)
        for r in range(ROUNDS):
            self.ask(-1, r, point)
        self.close(-1)

    @rule(run=st.integers(-3, 20))
    def close(self, run: int) -> None:
        self.said("close", {}, run=self.runs[run % len(self.runs)], head="")

    @rule()
    def restart(self) -> None:
        self._reborn()

    @precondition(lambda self: self.admissions)
    @rule(entries=st.integers(0, 2), written=st.booleans(), point=st.sampled_from(range(len(POINTS))))
    def die_in_a_round(self, entries: int, written: bool, point: int) -> None:
        """At the next entry of the ledger, or one or two later; before it is written, or right after."""
        ledger, note, left = self.silo.ledger, self.silo.ledger.note, itertools.count(entries, -1)

        def last(*given: Any) -> Any:
            if (now := next(left)) > 0:
                return note(*given)
            if now == 0 and written:
                note(*given)
            raise _Death

        ledger.note = last
        run = self.runs[-1]
        fresh = [r for r in range(ROUNDS) if (run, r) not in self.replies]
        self.said("ask", {"w": POINTS[point]}, run=run, round=(fresh or [0])[0], head="")
        ledger.note = note

    @invariant()
    def no_round_is_answered_in_two_ways(self) -> None:
        assert all(len(bodies) == 1 for bodies in self.replies.values())

    @invariant()
    def every_answer_is_of_an_admitted_round(self) -> None:
        for run, r in self.replies:
            rounds = self.admissions[run]["rounds"]
            assert r in (range(ROUNDS) if rounds is None else rounds)

    @invariant()
    def every_run_costs_at_most_what_it_guaranteed(self) -> None:
        for run, said in self.admissions.items():
            spent = sum(1 for answered, _ in self.replies if answered == run)
            assert said["epsilon_guaranteed"] <= said["epsilon"] <= min(PER_RUN["epsilon"], said["offered"])
            assert said["delta"] <= PER_RUN["delta"]
            mu = sqrt(spent) / said["noise_multiplier"]
            assert float(gaussian.epsilon(mu, said["delta"])) <= said["epsilon_guaranteed"]

    @invariant()
    def all_runs_together_cost_at_most_the_lifetime(self) -> None:
        answered = (self.admissions[run]["noise_multiplier"] for run, _ in self.replies)
        assert sum(1 / noise**2 for noise in answered) <= MU**2

    @invariant()
    def no_noise_is_used_twice(self) -> None:
        """Of 5 numbers on a grid of millions of steps, two are equal by chance once in 1e30."""
        arrays = [
            decode(next(iter(bodies))).arrays["g"].numpy().tobytes() for bodies in self.replies.values()
        ]
        assert len(set(arrays)) == len(arrays)


def _played(examples: int, steps: int) -> None:
    allowed = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    given = settings(
        max_examples=examples, stateful_step_count=steps, suppress_health_check=allowed, database=None
    )
    run_state_machine_as_test(AnyServer, settings=given)


def test_any_server_gets_at_most_what_was_promised():
    _played(4, 20)


@pytest.mark.slow
def test_many_more_servers_do_not_either():
    _played(100, 60)
