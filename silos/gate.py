"""The gate: everything that leaves a cohort of co-hosted silos passes here, and nothing else reads records.

(Private tuning releases one more thing, from records that no gate holds then: see `silos.score`.)

Guarantee (ISRL-DP, thesis Definitions 32 and 139): for every silo i, the transcript of all messages
that the gate ever returns for it is (epsilon_i, delta_i)-DP with respect to replacing one of its
records, n_i fixed, for any behaviour of the server and of the other silos. Why:

* Adaptive composition: an answer is a Gaussian mechanism (or its subsampled form) whose points and
  clip are functions of broadcasts and earlier noisy answers of this silo; its noise scales with the
  clip, so its cost is the plan's entry whatever the points are.
* The plan bounds the number and kind of answers: a query that does not match the plan's entry in
  statistic, batch, noise ratio and number of points is refused, as is a round outside the plan.
* The whole round is debited before noise is drawn, and a repeated request gets the stored bytes. How a
  round ended is a function of noisy answers too: once it has failed or been refused it stays so. Only a
  round that a dying process left open, of which nothing was seen, is answered again.
* The algorithm's silo half is given answers only, so its message is post-processing. It is code of the
  silo's own installation and trusted not to reach round `ask`; the server sends names and numbers, no code.

Silos in one cohort share tensor operations, never records, noise or ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.kinds import Problem, check
from fedsim.protocol.contract import Algorithm, Asker, Query
from fedsim.protocol.dryrun import ask_of
from fedsim.protocol.errors import Refused
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.terms import Statement, Terms
from fedsim.wire import digests
from silos.admission import admit, spent
from silos.batches import Batches, RoundBatches
from silos.entropy import SeededEntropy
from silos.ledger import MemoryLedger, Reply
from silos.noise import Noise
from silos.records import Block, Records
from silos.statistics import clipped_sum

Mechanism = Literal["gaussian", "none"]


def hold(
    silos: Sequence[tuple[np.ndarray, np.ndarray]],
    problem: Problem,
    dtype: torch.dtype,
    copies: int | None = None,
) -> Records:
    """Take charge of silos' records, (features (n, d), target (n,)) each; the caller keeps none.

    `copies` is for simulation alone: runs side by side, so many on the same records (`Records`).

    Raises:
        InputError: the problem's gradients cannot be taken record by record.
    """
    check(problem, dtype)
    return Records(silos, problem, dtype, copies)


class Gate:
    """A cohort of silos that runs one admitted plan."""

    def __init__(
        self,
        records: Records,
        problem: Problem,
        algorithm: Algorithm,
        plan: Plan,
        silos: Sequence[Terms],
        mechanism: Mechanism,
        entropy: SeededEntropy,
        limits: Limits,
        dtype: torch.dtype,
    ) -> None:
        """Admit the plan for every silo, or raise `Refused`."""
        names = [silo.name for silo in silos]
        if len(set(names)) < len(names):  # equal names would mean equal noise
            raise Refused("two silos of one cohort have the same name")
        for silo, n in zip(silos, records.sizes, strict=True):
            if silo.n != n:
                raise Refused(f"silo {silo.name!r} states {silo.n} records and holds another number")
            if mechanism == "none" and silo.epsilon < inf:
                raise Refused(f"silo {silo.name!r}: mechanism none cannot keep a budget of {silo.epsilon:g}")
        self._records, self._problem, self._algorithm = records, problem, algorithm
        self._plan, self._limits = plan, limits
        limits.check_plan(plan, problem.dimension)
        self._dtype = dtype
        self._private = mechanism == "gaussian"
        self.admitted = admit(plan, silos, limits)
        rounds = [terms.rounds for terms in silos]
        self._batches = Batches(records, plan, rounds, names, entropy)
        self._rounds = [frozenset(own) for own in rounds]
        self._multipliers = torch.tensor([[a.noise_multiplier] for a in self.admitted], dtype=torch.float64)
        self._noise = Noise(entropy, plan, records.silos, problem.dimension)
        self._ledgers = [MemoryLedger() for _ in silos]
        self._memory = CohortMemory(len(silos), problem.dimension, dtype)

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The members' messages of one round, {name: (members, d)}.

        Args:
            round_index: which round of the plan.
            broadcast: public tensors, each (d,), or (members, d) for runs side by side.
            members: positions in the cohort; all by default.

        Raises:
            Refused: the request is outside the plan or the limits. Nothing has been released, and
                a refusal before the debit has cost nothing.
        """
        members = range(len(self._ledgers)) if members is None else members
        self._check_members(round_index, members)
        shapes: list[tuple[int, ...]] = [(self._problem.dimension,)]
        if self._records.side_by_side:
            shapes.append((len(members), self._problem.dimension))
        for value in broadcast.values():
            self.check_point(value, shapes)
        broadcast = {name: value.detach().clone() for name, value in broadcast.items()}
        keys = digests(broadcast, len(members))
        stored = [self._ledgers[m].find(round_index, key) for m, key in zip(members, keys, strict=True)]
        fresh = [member for member, old in zip(members, stored, strict=True) if old is None]
        if len(fresh) < len(members):
            rows = [row for row, old in enumerate(stored) if old is None]
            broadcast = {name: v if v.dim() == 1 else v[rows] for name, v in broadcast.items()}
        for member, key, old in zip(members, keys, stored, strict=True):
            if old is None:  # debited together, and only if no silo refuses
                self._ledgers[member].debit(round_index, key)
        reply = self._reply(round_index, broadcast, fresh) if fresh else {}
        if len(fresh) < len(members):
            return _merged(reply, stored)
        return {name: value.clone() for name, value in reply.items()}  # the stored bytes stay as they are

    def check_point(self, point: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse a tensor of another shape or type than the silo computes with, or out of bounds."""
        if type(point) is not Tensor or point.dtype != self._dtype or tuple(point.shape) not in shapes:
            kinds = " or ".join(map(str, shapes))
            given = (
                f"{tuple(point.shape)} {point.dtype}" if isinstance(point, Tensor) else type(point).__name__
            )
            raise Refused(f"a point is {given}; this problem's dimension asks for {kinds} {self._dtype}")
        self._limits.check_point(point, self._problem.dimension)

    def _check_members(self, round_index: int, members: Sequence[int]) -> None:
        """Each silo once and in order: a silo named twice would answer twice for one debit."""
        ascending = all(a < b for a, b in pairwise(members))
        if not members or not ascending or members[0] < 0 or members[-1] >= len(self._ledgers):
            raise Refused("members must be distinct positions in the cohort, in ascending order")
        if self._records.side_by_side and len(members) < len(self._ledgers):
            raise Refused("runs side by side answer together")
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
        shape = (len(members), self._problem.dimension)
        try:
            message = self._algorithm.silo(self._problem, broadcast, cast(Asker, asker), memory)
            asker.finish()
            reply = {name: _copied(message[name], shape) for name in sorted(message)}
            self._memory.commit(members, memory)
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else f"round {round_index} failed in the silo"
            for member in members:
                self._ledgers[member].refuse(round_index, reason)
            raise
        finally:
            asker.close()
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


def _copied(value: Tensor, shape: tuple[int, int]) -> Tensor:
    value = value.detach()
    return value.clone() if value.shape == shape else value.expand(shape).clone()


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
        self._noise = gate._noise.round(gate._records.drawn(members), round_index)

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        planned = self._match(queries)
        queries = tuple(
            self._checked(query, shape) for query, shape in zip(queries, planned.queries, strict=True)
        )
        self._position += 1  # now only: a refusal that the silo half swallows leaves the next ask this place
        blocks, divisors = self._batches.next(planned.batch)
        answers = tuple(self._release(query, blocks, divisors) for query in queries)
        return answers if len(answers) > 1 else answers[0]

    def _checked(self, query: Query, planned: QueryShape) -> Query:
        """The planned query at these points and this clip, as plain values within the limits."""
        silos, dimension = len(self._members), self._gate._problem.dimension
        clip = query.clip
        if isinstance(clip, Tensor):
            clip = clip.detach()
            clip = clip.reshape(()) if tuple(clip.shape) == (1,) else clip  # the norm of a shared vector
            if clip.dtype != self._gate._dtype or tuple(clip.shape) not in ((), (silos, 1)):
                raise Refused(
                    f"clip is {tuple(clip.shape)} {clip.dtype}, not one number a silo, ({silos}, 1)"
                )
        else:
            clip = float(clip)
        self._gate._limits.check_clip(clip)
        for point in query.points:
            self._gate.check_point(point, [(dimension,), (silos, dimension)])
        points = tuple(point.detach() for point in query.points)
        return Query(planned.statistic, points, clip, noise_ratio=planned.noise_ratio)

    def _match(self, queries: tuple[Query, ...]) -> Ask:
        """The plan's entry: from here on the plan's values count, and no longer the query's."""
        if self._position >= len(self._planned):
            raise Refused(f"the plan has {len(self._planned)} ask(s) in this round, this is one more")
        planned = self._planned[self._position]
        if (asked := ask_of(queries)) != planned:
            raise Refused(f"ask {self._position} of the round is {asked}, the plan has {planned}")
        return planned

    def finish(self) -> None:
        """Close the round: later asks are refused, and so is a message of fewer answers than planned."""
        position = self._position
        self.close()
        if position != len(self._planned):
            raise Refused(f"the plan has {len(self._planned)} ask(s) in this round, {position} were made")

    def close(self) -> None:
        """Refuse every later ask, whoever has kept this object."""
        self._position = len(self._planned)

    def _release(self, query: Query, blocks: Sequence[Block], divisors: Tensor) -> Tensor:
        """The clipped mean over K records plus N(0, (noise_ratio z 2 clip / K)^2) a coordinate; (members, d).

        2 clip / K is the L2 sensitivity of the mean under replace-one, so the release is a Gaussian
        mechanism with noise multiplier noise_ratio z.
        """
        total = self._clipped_sum(query, blocks)
        if self._gate._private:
            sigma = query.noise_ratio * self._multipliers * (2 * query.clip)  # of the sum
            copies, noise = self._gate._records.copies, self._noise.next()
            total.addcmul_(sigma, noise if copies == 1 else noise.repeat(copies, 1))
        return total.div_(divisors).to(self._gate._dtype)

    def _clipped_sum(self, query: Query, blocks: Sequence[Block]) -> Tensor:
        """The blocks' clipped sums in the order of the members, (members, d)."""
        clip = query.clip if self._gate._private else None
        if len(blocks) == 1:  # its silos are in the members' order
            return clipped_sum(self._gate._problem, blocks[0], query.points, clip)
        total = torch.empty(len(self._members), self._gate._problem.dimension, dtype=torch.float64)
        place = {member: row for row, member in enumerate(self._members)}
        for block in blocks:
            rows = torch.tensor([place[member] for member in block.members])
            points = [point if point.dim() == 1 else point[rows] for point in query.points]
            own = clip[rows] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            total[rows] = clipped_sum(self._gate._problem, block, points, own)
        return total
