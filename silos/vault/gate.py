"""The gate: everything that leaves a cohort of co-hosted silos passes here, and nothing else reads records.

Private tuning, in a simulation, releases one more thing: see `fedsim.simulation.selection`.

Guarantee (ISRL-DP, thesis Definitions 32 and 139): for every silo i, the transcript of all messages
that the gate ever returns for it is (epsilon_i, delta_i)-DP with respect to replacing one of its
units (`fedsim.protocol.unit`), n_i fixed, for any behaviour of the server and of the
other silos. (With secure aggregation the gate returns contributions. For one contribution this holds at the
epsilon of collusion; for the sums, which are all that the server sees, the mechanism states the guarantee.)
Why:

* Adaptive composition: an answer is a release of the run's mechanism (a Gaussian mechanism, or its
  subsampled form: `fedsim.privacy.silo_gaussian`) whose points and clip are functions of broadcasts and
  earlier noisy answers of this silo; its noise scales with the clip, so its cost is the plan's entry
  whatever the points are.
* The plan bounds the number and kind of answers: a query that does not match the plan's entry in
  statistic, options, batch, noise ratio, number of points and size of a transform is refused, as is a round
  outside the plan.
* What is checked is what is used: queries, broadcasts, messages and memory are copied first
  (`fedsim.protocol.copies`), and of a query that matches, the plan's own statistic, batch and noise ratio are
  used. An ask is not answered under a setting of torch that changes sums (`silos.vault.sums`). One that
  breaks down after its batch was drawn ends the round, whatever the silo method makes of that: its noise is
  never used at another point.
* The whole round is debited before noise is drawn, once: a ledger refuses a second debit, whoever asks at the
  same time, and a repeated request gets the stored bytes. How a round ended is a function of noisy answers
  too: whatever ended it, an interrupt included, it is over.
* Who drives a round (`silos.front.served`) is given answers only, so that the message which it hands back is
  post-processing. The server sends names and numbers, no code.

All of it rests on what the gate is given: entropy and ledgers that keep to `silos.vault.entropy` and
`silos.vault.ledger`, one ledger for each silo. Silos in one cohort share tensor operations, never records,
noise or ledgers. A gate stays in its process: it cannot be pickled or copied, since a second one would answer
beside the first, for a ledger of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy.mechanism import Mechanism
from fedsim.problems.answerable import check_answerable
from fedsim.problems.kinds import Problem, check
from fedsim.protocol.copies import CohortMemory, copied_arrays, copied_queries, digests
from fedsim.protocol.limits import Limits, check_table, check_transform
from fedsim.protocol.plan import Arrays, Ask, Plan, Statement, Terms
from fedsim.protocol.query import Query
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import groups_asked, point_sizes, statistic
from fedsim.protocol.unit import check_h
from silos.vault.admission import admit, spent
from silos.vault.entropy import Entropy
from silos.vault.owners import ALONE, Owners
from silos.vault.records import Records
from silos.vault.releases import Releases
from silos.vault.sums import check_surroundings

if TYPE_CHECKING:
    from silos.vault.ledger import Ledger, Reply


def lay_out(silos: Sequence[Rows], problem: Problem, dtype: torch.dtype, owners: Owners = ALONE) -> Records:
    """Lay silos' records out for a gate; the caller keeps none.

    `owners`: the unit of plans, and whose the records are. InputError if the problem's gradients cannot be
    taken record by record.
    """
    check(problem, dtype)
    return Records(silos, problem, dtype, owners)


class Gate:
    """A cohort of silos that answers one admitted plan; it is asked round by round, each by one thread."""

    def __init__(
        self,
        records: Records,
        problem: Problem,
        plan: Plan,
        silos: Sequence[Terms],
        mechanism: Mechanism,
        entropy: Entropy,
        ledgers: Sequence[Ledger],
        limits: Limits,
        dtype: torch.dtype,
        broadcasts: Sequence[Arrays] | None = None,
    ) -> None:
        """Admit the plan for every silo, or raise `Refused`.

        Args:
            records: of all silos.
            problem: whose per-record losses the silos own.
            plan: what will be asked for.
            silos: what each brings, in the order of the records; names differ.
            mechanism: prices the plan and adds the noise.
            entropy: streams of the silos, by their position.
            ledgers: one for each silo, of no other gate; an attribute `together` is a new one that all share
                until some are asked apart (`fedsim.simulation.host.MemoryLedgers`).
            limits: what the silos consider at all.
            dtype: of parameters and answers.
            broadcasts: the arrays that each round is asked with; None for any of d numbers, where the one
                who asks is trusted with what a round costs.
        """
        self.records, self.problem, self.plan, self.mechanism = records, problem, plan, mechanism
        self.dtype, self.limits, self._broadcasts = dtype, limits, broadcasts
        self._check(silos)
        self.admitted = admit(plan, silos, mechanism, limits)
        each = (terms.rounds for terms in silos)
        self._rounds = [own if isinstance(own, range) else frozenset(own) for own in each]
        self._common = frozenset(range(len(plan.rounds))).intersection(*set(self._rounds))
        self.releases = Releases(records, problem, mechanism, entropy, plan, self.admitted, dtype)
        self._ledgers, self._everyone = ledgers, list(range(len(silos)))
        self.memory = self._remembered()

    def _check(self, silos: Sequence[Terms]) -> None:
        """Refuse silos or a plan that the records do not suit."""
        records, plan = self.records, self.plan
        names = [silo.name for silo in silos]
        if len(set(names)) < len(names):  # equal names would mean equal noise
            raise Refused("two silos of one cohort have the same name")
        if plan.unit != records.unit:
            raise Refused(f"the plan is of unit {plan.unit.name}, the records are laid out for another unit")
        for silo, n in zip(silos, records.sizes, strict=True):
            if not plan.unit.fits(n, silo.n):
                stated = f"{silo.n} {plan.unit.name}s"
                raise Refused(f"silo {silo.name!r} states {stated} and holds another number")
        self.limits.check_plan(plan, self.problem.dimension, self.problem.num_features)
        check_answerable(self.problem, plan.queries)
        if not records.grouped and groups_asked(plan.queries):
            raise Refused("the plan asks by group, and the records have no attribute: name data.attribute")

    def _remembered(self) -> CohortMemory:
        """The silo method's memory as of the ledgers; Refused if two silos share one."""
        ledgers, dimension = self._ledgers, self.problem.dimension
        if len(ledgers) != len(self._everyone):
            raise ValueError(f"{len(ledgers)} ledgers for {len(self._everyone)} silos")
        memory = CohortMemory(len(ledgers), dimension, self.dtype)
        if getattr(ledgers, "together", None) is not None:  # they are new
            return memory
        if len({id(ledger) for ledger in ledgers}) < len(ledgers):
            raise Refused("two silos of one cohort have the same ledger")
        for member, ledger in enumerate(ledgers):
            if kept := ledger.memory:
                row = CohortMemory(1, dimension, self.dtype)
                row.update({name: value[None] for name, value in kept.items()})
                memory.commit([member], row)
        return memory

    def __reduce__(self) -> NoReturn:
        raise TypeError("a gate stays in its process: a copy would answer for a ledger of its own")

    def asked(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> OpenRound:
        """Pay for one round of the plan, for the members that have no stored reply to this broadcast, whose
        tensors are (d,). Members are positions in the cohort; all by default.

        Refused if the request is outside the plan or the limits: nothing has been released, and a refusal
        before the debit has cost nothing.
        """
        check_surroundings(self.dtype)
        members = self._everyone if members is None else list(members)
        self._check_members(round_index, members)
        broadcast = copied_arrays(broadcast, "a broadcast")
        sizes = dict.fromkeys(broadcast, self.problem.dimension)
        if (
            self._broadcasts is not None
            and broadcast.keys() != (sizes := dict(self._broadcasts[round_index])).keys()
        ):
            raise Refused(f"round {round_index} is asked for with other arrays than {', '.join(sizes)}")
        for name, value in broadcast.items():
            self.check_point(value, self.records.shapes(members, sizes[name]))
        keys = digests(broadcast, len(members))
        one = getattr(self._ledgers, "together", None) if members == self._everyone else None
        if one is not None and keys.count(keys[0]) == len(keys):
            ledgers, keys = [one], keys[:1]
        else:
            one, ledgers = None, [self._ledgers[member] for member in members]
        stored = [ledger.find(round_index, key) for ledger, key in zip(ledgers, keys, strict=True)]
        paid = [ledger for ledger, old in zip(ledgers, stored, strict=True) if old is None]
        for ledger, key, old in zip(ledgers, keys, stored, strict=True):
            if old is None:  # debited together, and only if no silo refuses
                ledger.debit(round_index, key)
        if one is not None:
            return OpenRound(self, round_index, broadcast, members if paid else [], stored, paid, True)
        fresh = [member for member, old in zip(members, stored, strict=True) if old is None]
        return OpenRound(self, round_index, broadcast, fresh, stored, paid)

    def check_point(self, point: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse a plain tensor of another shape or type than the silo computes with, or out of bounds."""
        if point.dtype != self.dtype or tuple(point.shape) not in shapes:
            kinds, given = " or ".join(map(str, shapes)), f"{tuple(point.shape)} {point.dtype}"
            raise Refused(f"a point is {given}; this problem's dimension asks for {kinds} {self.dtype}")
        self.limits.check_point(point)

    def _check_members(self, round_index: int, members: Sequence[int]) -> None:
        """Each silo once and in order: a silo named twice would answer twice for one debit."""
        if members == self._everyone and round_index in self._common:
            return
        ascending = list(members) == sorted(set(members))
        if not members or not ascending or members[0] < 0 or members[-1] >= len(self._ledgers):
            raise Refused("members must be distinct positions in the cohort, in ascending order")
        for member in members:
            if round_index not in self._rounds[member]:
                name = self.admitted[member].terms.name
                raise Refused(f"silo {name!r}: round {round_index} is not in its plan")

    def statements(self) -> list[Statement]:
        """Statement of each silo: what it guaranteed, spent and answered."""
        found = []
        for admitted, ledger in zip(self.admitted, self._ledgers, strict=True):
            debited = ledger.debited  # once: another thread may be at a round
            epsilon = spent(self.plan, admitted, debited, self.mechanism)
            found.append(Statement(admitted, epsilon, debited, [ledger.digest(r) for r in debited]))
        return found


class OpenRound:
    """One round that a cohort was asked for: its queries are matched with the plan, checked and released.

    `broadcast` is a copy; `memory` is the silo method's, of the `members` that have paid and not replied.
    """

    def __init__(
        self,
        gate: Gate,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        members: list[int],
        stored: Sequence[Reply | None],
        paid: Sequence[Ledger],
        together: bool = False,
    ) -> None:
        self._gate, self._round, self._ledgers, self._together = gate, round_index, paid, together
        self.broadcast, self.members, self._stored = broadcast, members, stored
        self._planned, self._position = gate.plan.rounds[round_index], 0
        self.problem, self.memory = gate.problem, gate.memory.select(members)
        self._ended = not members
        self._open, self.reply = bool(members), None if members else _merged({}, stored, together)
        if members:
            self._releases = gate.releases.round(members, round_index)

    def ask(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        """The noisy answers to one ask of the round, each of the shape that the plan gives. Refused if it is
        not the plan's next; one that breaks down ends the round.
        """
        self._check_open()
        check_surroundings(self._gate.dtype)
        planned, taken = self._match(queries)
        checked = [self._checked(query) for query in taken]
        # Now only: a refusal that the silo method swallows leaves the next ask this place.
        self._position += 1
        self._open = False  # until there are answers: an ask that breaks down ends the round
        if torch.is_grad_enabled():
            answers = self._releases.answers(planned, checked)
        else:  # of the silo method's own; networks need gradients
            with torch.enable_grad():
                answers = self._releases.answers(planned, checked)
        self._open = True
        return answers if len(answers) > 1 else answers[0]

    def _match(self, queries: tuple[Query, ...]) -> tuple[Ask, list[Query]]:
        """The plan's entry, and the queries, which cost what it says, in plain values."""
        if self._position >= len(self._planned):
            raise Refused(f"the plan has {len(self._planned)} ask(s) in this round, this is one more")
        planned = self._planned[self._position]
        asked, taken = copied_queries(queries)
        if asked != planned:
            raise Refused(f"ask {self._position} of the round is {asked}, the plan has {planned}")
        return planned, taken

    def _checked(self, query: Query) -> Query:
        """The query with its points and clip within the limits, a clip of one number as such."""
        gate, silos, clip = self._gate, len(self.members), query.clip
        if isinstance(clip, Tensor):
            clip = clip.reshape(()) if tuple(clip.shape) == (1,) else clip  # the norm of a shared vector
            if clip.dtype != gate.dtype or tuple(clip.shape) not in ((), (silos, 1)):
                given = f"{tuple(clip.shape)} {clip.dtype}"
                raise Refused(f"clip is {given}, not one number a silo, ({silos}, 1)")
        gate.limits.check_clip(clip, query.statistic)
        check_h(gate.plan.unit, query.h, statistic(query.statistic).clipped)
        sizes = point_sizes(query.shape, gate.problem.dimension, gate.problem.num_features)
        for point, size in zip(query.points, sizes, strict=True):
            gate.check_point(point, [(size,), (silos, size)])
        check_table(query)
        if query.transform is not None:
            check_transform(query.transform, gate.problem.num_features, gate.dtype)
            gate.limits.check_point(query.transform)
        return query if clip is query.clip else replace(query, clip=clip)

    def _check_open(self) -> None:
        if not self._open:
            raise Refused("the round is over, or an ask of it is under way or broke down")

    def keep(self, message: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Store the message, (members, d) by name, and the memory, before the reply is returned: the message,
        with the stored replies of members that had one. Refused, and the round is over, if fewer asks were
        made than the plan has, or it is no message.
        """
        if self._ended:
            self._check_open()
        try:
            self._check_open()
            self._open = False
            if self._position != len(self._planned):
                planned = f"{len(self._planned)} ask(s) in this round"
                raise Refused(f"the plan has {planned}, {self._position} were made")
            reply = self._kept(message)
        except BaseException as error:
            self.over(error)
            raise
        self._ended = True
        for row, ledger in enumerate(self._ledgers):
            if self._together:
                ledger.store(self._round, reply, self._gate.memory)
            else:
                member = self.members[row]
                ledger.store(self._round, Row(reply, row), Row(self._gate.memory, member))
        return _merged(reply, self._stored, self._together)

    def _kept(self, message: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._gate.mechanism.sums_only:
            return self._releases.contributions(self.memory)
        plain = copied_arrays(message, "a message")
        reply = {name: _widened(plain[name], len(self.members)) for name in sorted(plain)}
        self._gate.memory.commit(self.members, self.memory)
        return reply

    def over(self, error: BaseException) -> None:
        """End the round without a reply; the ledger holds it to be over in any case, and this says why."""
        self._open, self._ended = False, True
        reason = str(error) if type(error) is Refused else f"round {self._round} failed in the silo"
        for ledger in self._ledgers:
            ledger.refuse(self._round, reason)


def _widened(value: Tensor, silos: int) -> Tensor:
    if not value.dim():
        raise Refused("an array of a message is one number, not a vector")
    shape = silos, value.shape[-1]
    return value if value.shape == shape else value.expand(shape).clone()


class Row(Mapping[str, Tensor]):
    """One silo's row of a cohort's reply {name: (silos, d)}, taken when it is looked at."""

    __slots__ = ("_reply", "_row")

    def __init__(self, reply: Mapping[str, Tensor], row: int) -> None:
        self._reply, self._row = reply, row

    def __getitem__(self, name: str) -> Tensor:
        return self._reply[name][self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reply)

    def __len__(self) -> int:
        return len(self._reply)


def _merged(reply: Mapping[str, Tensor], stored: Sequence[Reply | None], together: bool) -> dict[str, Tensor]:
    """Stored replies, and the rows of `reply` in order where there is none; what is stored stays as it is."""
    if together or stored == [None] * len(stored):
        whole = reply if stored[0] is None else stored[0]
        return {name: value.clone() for name, value in whole.items()}
    new = iter(range(len(stored)))
    rows = [Row(reply, next(new)) if old is None else old for old in stored]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
