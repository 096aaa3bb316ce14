"""The gate: everything that leaves a cohort of co-hosted silos passes here, and nothing else reads records.

Guarantee (ISRL-DP, thesis Definitions 32 and 139): for every silo i, the transcript of all messages
that the gate ever returns for it is (epsilon_i, delta_i)-DP with respect to replacing one of its
records, n_i fixed, for any behaviour of the server and of the other silos. Why:

* Adaptive composition: an answer is a Gaussian mechanism (or its subsampled form) whose points and
  clip are functions of broadcasts and earlier noisy answers of this silo; its noise scales with the
  clip, so its cost is the plan's entry whatever the points are.
* The plan bounds the number and kind of answers: a query that does not match the plan's entry in
  statistic, batch, noise ratio and number of points is refused, as is a round outside the plan.
* The whole round is debited before noise is drawn, and a repeated request gets the stored bytes.
* The algorithm's silo half sees only answers, so its message is post-processing.

Silos in one cohort share tensor operations, never records, noise or ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.contract import Algorithm, Asker, Query
from fedsim.protocol.dryrun import ask_of
from fedsim.protocol.errors import Refused
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plan import Plan
from fedsim.protocol.terms import Statement, Terms
from fedsim.wire import digest
from silos.admission import admit, spent
from silos.batches import Batches, RoundBatches
from silos.entropy import SeededEntropy
from silos.ledger import MemoryLedger, Reply
from silos.noise import RoundNoise
from silos.records import Block, Records
from silos.statistics import clipped_sum

Mechanism = Literal["gaussian", "none"]


def hold(
    silos: Sequence[tuple[np.ndarray, np.ndarray]], problem: GeneralisedLinear, dtype: torch.dtype
) -> Records:
    """Take charge of silos' records, (features (n, d), target (n,)) each; the caller keeps none."""
    return Records(silos, problem, dtype)


class Gate:
    """A cohort of silos that runs one admitted plan."""

    def __init__(
        self,
        records: Records,
        problem: GeneralisedLinear,
        algorithm: Algorithm,
        plan: Plan,
        silos: Sequence[Terms],
        mechanism: Mechanism,
        entropy: SeededEntropy,
        limits: Limits,
        dtype: torch.dtype,
    ) -> None:
        """Admit the plan for every silo, or raise `Refused`."""
        self._problem, self._algorithm, self._plan, self._limits = problem, algorithm, plan, limits
        self._records, self._entropy, self._dtype = records, entropy, dtype
        self._private = mechanism == "gaussian"
        self.admitted = admit(plan, silos, limits)
        rounds = [terms.rounds for terms in silos]
        self._batches = Batches(records, plan, rounds, [terms.name for terms in silos], entropy)
        self._rounds = [frozenset(own) for own in rounds]
        self._multipliers = torch.tensor([[a.noise_multiplier] for a in self.admitted], dtype=dtype)
        self._ledgers = [MemoryLedger() for _ in silos]
        self._memory = CohortMemory(len(silos), problem.dimension, dtype)

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The members' messages of one round, {name: (members, d)}.

        Args:
            round_index: which round of the plan.
            broadcast: public tensors, each (d,).
            members: positions in the cohort; all by default.

        Raises:
            Refused: the request is outside the plan or the limits. Nothing has been released, and
                a refusal before the debit has cost nothing.
        """
        members = range(len(self._ledgers)) if members is None else members
        self._check_members(round_index, members)
        for value in broadcast.values():
            self._limits.check_point(value, self._problem.dimension)
        key = digest(broadcast)
        stored = [self._ledgers[member].open(round_index, key) for member in members]
        fresh = [member for member, old in zip(members, stored, strict=True) if old is None]
        reply = self._reply(round_index, broadcast, fresh) if fresh else {}
        return reply if len(fresh) == len(members) else _merged(reply, stored)

    def _check_members(self, round_index: int, members: Sequence[int]) -> None:
        """Each silo once and in order: a silo named twice would answer twice for one debit."""
        ascending = all(a < b for a, b in pairwise(members))
        if not members or not ascending or members[0] < 0 or members[-1] >= len(self._ledgers):
            raise Refused("members must be distinct positions in the cohort, in ascending order")
        for member in members:
            if round_index not in self._rounds[member]:
                name = self.admitted[member].terms.name
                raise Refused(f"silo {name!r}: round {round_index} is not in its plan")

    def _reply(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: list[int]
    ) -> dict[str, Tensor]:
        """Answer for silos that have paid for this round and not replied; store before returning."""
        memory = self._memory.select(members)
        asker = _RoundAsker(self, round_index, members)
        message = self._algorithm.silo(self._problem, broadcast, cast(Asker, asker), memory)
        asker.check_finished()
        shape = (len(members), self._problem.dimension)
        reply = {name: message[name].expand(shape).contiguous() for name in sorted(message)}
        self._memory.commit(members, memory)
        for row, member in enumerate(members):
            self._ledgers[member].store(round_index, reply, row)
        return reply

    def statements(self) -> list[Statement]:
        """What each silo guaranteed, spent and answered."""
        return [
            Statement(
                admitted,
                spent(self._plan, admitted, ledger.debited),
                ledger.debited,
                [ledger.digest(r) for r in ledger.debited],
            )
            for admitted, ledger in zip(self.admitted, self._ledgers, strict=True)
        ]


def _merged(reply: Mapping[str, Tensor], stored: Sequence[Reply | None]) -> dict[str, Tensor]:
    """Stored rows, and the rows of `reply` in order where there is none."""
    new = iter(range(len(stored)))
    rows = [(reply, next(new)) if old is None else old for old in stored]
    return {name: torch.stack([tensors[name][row] for tensors, row in rows]) for name in rows[0][0]}


class _RoundAsker:
    """`ask` for one round of one cohort: match the plan, check the limits, then read records."""

    def __init__(self, gate: Gate, round_index: int, members: list[int]) -> None:
        self._gate, self._members = gate, members
        self._planned = gate._plan.rounds[round_index]
        self._position = 0
        self._batches: RoundBatches = gate._batches.round(members, round_index)
        everyone = len(members) == len(gate._multipliers)
        self._multipliers = gate._multipliers if everyone else gate._multipliers[members]
        queries = sum(len(ask.queries) for ask in self._planned)
        self._noise = RoundNoise(gate._entropy, members, round_index, queries, gate._problem.dimension)

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        self._match(queries)
        for query in queries:
            self._gate._limits.check_clip(query.clip)
            for point in query.points:
                self._gate._limits.check_point(point, self._gate._problem.dimension)
        blocks, divisors = self._batches.next(queries[0].batch)
        answers = tuple(self._release(query, blocks, divisors) for query in queries)
        return answers if len(answers) > 1 else answers[0]

    def _match(self, queries: tuple[Query, ...]) -> None:
        ask = ask_of(queries)
        if self._position >= len(self._planned):
            raise Refused(f"the plan has {len(self._planned)} ask(s) in this round, this is one more")
        if ask != self._planned[self._position]:
            raise Refused(
                f"ask {self._position} of the round is {ask}, the plan has {self._planned[self._position]}"
            )
        self._position += 1

    def check_finished(self) -> None:
        """A message made of fewer answers than planned is another algorithm's."""
        if self._position != len(self._planned):
            raise Refused(
                f"the plan has {len(self._planned)} ask(s) in this round, {self._position} were made"
            )

    def _release(self, query: Query, blocks: Sequence[Block], divisors: Tensor) -> Tensor:
        """The clipped mean over K records plus N(0, (noise_ratio z 2 clip / K)^2) a coordinate; (members, d).

        2 clip / K is the L2 sensitivity of the mean under replace-one, so the release is a Gaussian
        mechanism with noise multiplier noise_ratio z.
        """
        total = self._clipped_sum(query, blocks)
        if not self._gate._private:
            return total / divisors
        sigma = query.noise_ratio * self._multipliers * (2 * query.clip)  # of the sum
        return total.addcmul_(sigma, self._noise.next(self._gate._dtype)).div_(divisors)

    def _clipped_sum(self, query: Query, blocks: Sequence[Block]) -> Tensor:
        """The blocks' clipped sums in the order of the members, (members, d)."""
        clip = query.clip if self._gate._private else None
        if len(blocks) == 1:  # its silos are in the members' order
            return clipped_sum(self._gate._problem, blocks[0], query.points, clip)
        total = torch.empty(len(self._members), self._gate._problem.dimension, dtype=self._gate._dtype)
        place = {member: row for row, member in enumerate(self._members)}
        for block in blocks:
            rows = torch.tensor([place[member] for member in block.members])
            points = [point if point.dim() == 1 else point[rows] for point in query.points]
            own = clip[rows] if isinstance(clip, Tensor) and clip.dim() > 0 else clip
            total[rows] = clipped_sum(self._gate._problem, block, points, own)
        return total
