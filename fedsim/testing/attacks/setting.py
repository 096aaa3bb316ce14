"""The target of an audit: a scenario's plan, its silos' records and their guarantees.

An audit holds records, as only a simulation can: it plays a server that knows all of them but one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite, sqrt
from types import SimpleNamespace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.data.source import NO_LABEL
from fedsim.privacy import attribute
from fedsim.privacy.registry import GAUSSIAN
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.clashes import check
from fedsim.protocol.contract import Query
from fedsim.protocol.groups import Cells
from fedsim.protocol.links import Answered, Link
from fedsim.protocol.plan import Admitted, Arrays, Ask, Census
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import COSTED_GRADIENT
from fedsim.protocol.unit import RECORD, Person, Unit
from fedsim.report.silo_rows import admitted_rows, group_apart
from fedsim.scenario.facts import facts_of
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import DirectLink, preview
from fedsim.simulation.secure_aggregation import Summed, TrialSums, at_once
from fedsim.simulation.trial import read
from fedsim.testing.attacks.canaries import MANY, Record, canaries, num_units, related, silent, whose
from fedsim.testing.attacks.cohorts import Tap, Wiretap, cohort, sensitivity
from fedsim.testing.attacks.parties import PARTIES, Answering, Party, party_gate, together
from server.aggregate import summed, weighted
from server.loop import run
from server.participation import Schedule, schedule
from silos.vault.persons import Order

Others = Literal["own", "copies", "silent"]
Broadcast = Mapping[str, Tensor]
_MOST_SILOS = 10


@dataclass(frozen=True)
class Kind:
    """Rounds that broadcast the same names and ask the same things."""

    asks: tuple[Ask, ...]  # of each of these rounds
    names: tuple[str, ...]  # of the broadcast
    rounds: tuple[int, ...]  # ascending
    seen: tuple[Broadcast, ...]  # broadcasts of some of them, of an honest run

    @property
    def arrays(self) -> Arrays:
        """Names and sizes of the broadcast."""
        return tuple((name, len(self.seen[0][name])) for name in self.names)

    @property
    def weight(self) -> float:
        """Sum over its asks of their weight squared."""
        return sum(ask.weight**2 for ask in self.asks)


@dataclass(frozen=True)
class Setting:
    """A scenario under audit, with the data of its first trial; with secure aggregation, one party's."""

    resolved: Resolved
    data: tuple[Rows, ...]
    admitted: tuple[Admitted, ...]
    schedule: Schedule
    kinds: tuple[Kind, ...] = ()
    party: Party = "server"
    crowd: Rows | None = None
    many: int = MANY  # records of a person with many
    swapped: int = 1  # records that are swapped at once, where persons attack a plan for records
    groups_alone: bool = False  # whether what differs is the group of one record

    @property
    def unit(self) -> Unit:
        """The unit of the plan."""
        return self.resolved.trace.plan.unit

    def place(self, silo: int) -> int:
        """The number of the unit that is replaced: of persons the last, so that others are drawn alike."""
        return 0 if self.unit == RECORD else int(whose(self.data[silo])[-1])

    def places(self, silo: int) -> Sequence[int]:
        """The numbers of all units of the silo that can be replaced without a change to others' draws."""
        if self.unit.shifts or self.swapped > 1:
            return [self.place(silo)]
        return range(num_units(self.data[silo], self.unit))

    def by_persons(self, records: int) -> Setting:
        """The setting with persons of up to so many records as what differs. With a plan for records, so many
        of a silo, or all, are swapped at once: its first ones.
        """
        if isinstance(self.unit, Person):
            return replace(self, many=records)
        data = tuple(
            own._replace(owners=np.maximum(np.arange(own.n) - (records - 1), 0)) for own in self.data
        )
        return replace(self, data=data, swapped=records)

    def by_groups(self) -> Setting:
        """One record's group is all that differs; InputError where `epsilon_attribute` is not claimed."""
        rows, of_groups = admitted_rows(self.resolved, self.admitted), self.resolved.mechanism.of_groups
        every = [row.epsilon_guaranteed if of_groups else row.epsilon_attribute for row in rows]
        claims = [claim for claim in every if claim]
        if self.resolved.sums is not None or len(claims) < len(every):
            hint = "needs answers by group, an attribute that is no feature, and neither persons nor sums"
            raise InputError("unit", "group", hint)
        each = zip(self.admitted, claims, strict=True)
        admitted = tuple(replace(own, epsilon_guaranteed=epsilon) for own, epsilon in each)
        return replace(self, admitted=admitted, groups_alone=True)

    @cached_property
    def longest(self) -> float:
        """The largest |x| of a record: as declared, else of those that there are; infinity for a network."""
        if isinstance(self.resolved.problem, NeuralNetwork):
            return inf
        declared = self.resolved.outline.squared_norms
        lengths = [np.linalg.norm(own.features, axis=1).max() for own in self.data]
        return float(max(lengths)) if declared is None else sqrt(declared[0])

    def related(self, found: Sequence[Rows]) -> np.ndarray:
        """`canaries.related`; where groups alone differ, of records that are equal but for theirs."""
        mask = related(self.unit, found)
        if self.groups_alone:
            rows = np.stack([np.append(each.features, each.target) for each in found])
            place = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
            mask &= place[:, None] == place
        return mask

    def swap(self, silo: int) -> int:
        """How many units of the plan differ between the silo's two worlds."""
        return min(self.swapped, len(self.data[silo].target))

    def canaries(self, silo: int, records: Iterable[Record]) -> list[Rows]:
        """Units to put in the place of the silo's own."""
        return canaries(self.unit, records, self.swap(silo) if self.unit == RECORD else self.many)

    def sensitivity(self, query: Query) -> Tensor:
        """What noise is scaled to: `cohorts.sensitivity` to a unit of the plan, or to a record's group."""
        return self._by_group(query) if self.resolved.mechanism.of_groups else sensitivity(query, self.unit)

    def scale(self, query: Query) -> Tensor:
        """The same to weigh answers by; where there is no noise, a millionth of the clip stands for it."""
        return self.sensitivity(query).clamp_min(1e-6 * float(torch.as_tensor(query.clip).max()))

    def allowed(self, query: Query) -> Tensor:
        """How far what differs may move a query's sum."""
        return self._by_group(query) if self.groups_alone else self.sensitivity(query)

    def _by_group(self, query: Query) -> Tensor:
        """`attribute.distance` at the query's own costs."""
        costed = query.statistic == COSTED_GRADIENT.name
        reach = Cells.of(query.options).reach(query.points[1]) if costed else inf
        clip, outputs = float(torch.as_tensor(query.clip).max()), self.resolved.problem.num_outputs
        moved = attribute.distance(query.shape, reach, clip, self.longest, outputs)
        return torch.tensor(moved, dtype=torch.float64)

    def read_by(self, party: Party) -> Setting:
        """The setting of one party under secure aggregation, with its noise and the claim against it."""
        sums = self.resolved.sums
        assert sums is not None
        if party == "both":
            admitted = tuple(_colluding(self, silo, sums.mechanism) for silo in range(len(self.admitted)))
        elif party == "shuffler":
            admitted = tuple(replace(silo, epsilon_guaranteed=0.0) for silo in self.admitted)
        else:
            admitted = self.admitted
        return replace(self, admitted=admitted, party=party)

    @property
    def together(self) -> int:
        """The number of silos in each observed sum."""
        sums = self.resolved.sums
        return 1 if sums is None else together(self.resolved, sums, self.party)

    @property
    def parties(self) -> tuple[Party, ...]:
        """The parties that read anything under secure aggregation."""
        sums = self.resolved.sums
        assert sums is not None
        return PARTIES if sums.mechanism.transport == "shares" else ("server", "both")

    def as_added(self) -> Setting:
        """The setting of a party that sees all claimed noise in one number: both, for unlinked messages."""
        sums = self.resolved.sums
        return self.read_by("both") if sums is not None and sums.mechanism.single_records else self

    @property
    def shaped(self) -> bool:
        """Whether what is claimed has the trade-off curve of the plan's noise."""
        sums = self.resolved.sums
        if sums is None or self.party == "both":
            return True
        return self.party == "server" and not sums.mechanism.single_records

    def rounds(self, silo: int) -> Sequence[int]:
        """The rounds in the silo's plan."""
        return self.admitted[silo].terms.rounds

    def census(self, silo: int) -> Census:
        """The composition by which the silo's plan was priced."""
        own = self.rounds(silo)
        own = own if isinstance(own, range) else tuple(own)
        plan, apart = self.resolved.trace.plan, group_apart(self.resolved)
        if self.groups_alone and apart and not self.resolved.mechanism.of_groups:
            return attribute.census(plan, own, *apart)
        return plan.census(own)

    def start(self) -> Tensor:
        """The start of a run, (d,)."""
        resolved = self.resolved
        return resolved.problem.project(resolved.problem.start(resolved.scenario.seed).to(resolved.dtype))

    @cached_property
    def kind_of(self) -> dict[int, int]:
        """The position among `kinds` of each round that an honest run has."""
        return {r: k for k, kind in enumerate(self.kinds) for r in kind.rounds}

    def gate(
        self,
        tap: Tap,
        silos: Sequence[int],
        data: Sequence[Rows],
        streams: Sequence[str],
        noisy: bool = True,
        copies: int | None = None,
        like: int | None = None,
    ) -> Answering:
        """A cohort whose members are `silos` with the records `data`; equal `streams` draw equal batches and
        noise. All take part in the rounds of the silo `like`, or in their own.
        """
        wiretap, own = Wiretap(self.resolved.gate_algorithm, tap), [self.admitted[i] for i in silos]
        terms = [one.terms if like is None else replace(one.terms, rounds=self.rounds(like)) for one in own]
        if self.resolved.sums is not None:
            party: Party = self.party if noisy else "both"
            return party_gate(self.resolved, wiretap, terms, data, streams, party, noisy, self.crowd)
        run, sent = self.resolved, self.resolved.trace.broadcasts
        made = partial(cohort, terms=terms, copies=copies, mechanism=run.mechanism, broadcasts=sent)
        noise = [each.noise_multiplier if noisy else 0.0 for each in own]
        return made(run, wiretap, run.trace.plan, data, noise, streams)

    def audited(self) -> list[int]:
        """All silos of a small federation; of a large one some, evenly in order of what is claimed."""
        order = sorted(range(len(self.admitted)), key=lambda i: self.admitted[i].epsilon_guaranteed)
        order = [i for i in order if self.admitted[i].releases and not self.admitted[i].terms.public]
        most = max(2, _MOST_SILOS // (1 + self.together // 20))  # fewer where each needs a crowd
        places = np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)
        return sorted(order[place] for place in places)


def _colluding(setting: Setting, silo: int, mechanism: SumMechanism) -> Admitted:
    """A silo under its own share of the noise alone."""
    admitted = setting.admitted[silo]
    z, terms = admitted.noise_multiplier, admitted.terms
    (epsilon,) = mechanism.colluding_epsilons(setting.census(silo), [(terms.n, z, terms.delta)])
    return replace(admitted, noise_multiplier=mechanism.colluding(z), epsilon_guaranteed=epsilon)


class Federated:
    """The server loop's link to gates, one a silo, each of several runs side by side."""

    def __init__(
        self, gates: Sequence[Answering], answered: Callable[[int, int], None] = lambda silo, r: None
    ) -> None:
        """`answered` is called with (silo, round) after every answer of a gate."""
        self._gates, self._answered = gates, answered

    def answer(self, round_index: int, broadcast: Broadcast, members: Sequence[int]) -> Answered:
        """Messages {name: (runs, members, d)}."""
        replies = []
        for silo in members:
            replies.append(self._gates[silo].answer(round_index, broadcast))
            self._answered(silo, round_index)
        rows = {name: torch.stack([reply[name] for reply in replies], dim=1) for name in replies[0]}
        return Answered(members, rows)


def drive(setting: Setting, link: Link) -> Tensor:
    """An honest-but-curious server's runs, side by side; the final models, (runs, d)."""
    resolved = setting.resolved
    public = resolved.public([silo.noise_multiplier for silo in setting.admitted])
    seed, problem = resolved.scenario.seed, resolved.problem
    aggregate = weighted if resolved.sums is None else summed
    *_, last = run(resolved.gate_algorithm, problem, public, seed, link, setting.schedule, aggregate)
    return last.answer.reshape(-1, problem.dimension)


def prepare(resolved: Resolved) -> Setting:
    """Load the first trial's records and see how an honest run goes. InputError if the scenario claims
    nothing, or its data cannot be read, Refused if a silo does not accept the plan.
    """
    privacy, mechanism = resolved.scenario.privacy, resolved.mechanism
    check(facts_of(resolved.scenario), "audit", resolved.scenario.value)
    if not mechanism.private:
        hint = f"claims nothing, so there is nothing to audit; use {GAUSSIAN.name}"
        raise InputError("scenario.privacy.mechanism", mechanism.name, hint)
    admitted = tuple(preview(resolved))
    if not all(silo.terms.public or isfinite(silo.epsilon_guaranteed) for silo in admitted):
        hint = "gives no finite epsilon, so there is nothing to audit; add noise"
        raise InputError("scenario.privacy.noise_multiplier", privacy.noise_multiplier, hint)
    silos = read(resolved, 0).silos
    data = tuple(_by_unit(silo.train, resolved.trace.plan.unit) for silo in silos)
    rounds = schedule(len(silos), resolved.active, resolved.trace.holds, resolved.scenario.seed, 0)
    setting = Setting(resolved, data, admitted, rounds)
    setting = replace(setting, kinds=_kinds(setting))
    return setting.by_groups() if resolved.protects == "group" else setting


def _by_unit(rows: Rows, unit: Unit) -> Rows:
    """Records by unit, with a group each, -1 for none, and the number of the unit that each is of."""
    x, y = np.asarray(rows.features, float), np.asarray(rows.target, float)
    groups = np.full(len(y), NO_LABEL) if rows.groups is None else rows.groups
    if unit == RECORD or rows.owners is None:
        return Rows(x, y, groups, np.arange(len(y)))
    order = Order.of(rows.owners)
    return Rows(x, y, groups).of(order.rows)._replace(owners=order.numbers)


def _kinds(setting: Setting) -> tuple[Kind, ...]:
    """The kinds of round of an honest run, each with its broadcasts of the 1st, 2nd, 4th, 8th and so on."""
    resolved, data, plan = setting.resolved, setting.data, setting.resolved.trace.plan
    if resolved.sums is None:
        gates = [setting.gate(Tap(), [i], [own], [f"path/{i}"], copies=1) for i, own in enumerate(data)]
        link: Link = Federated(gates)
    else:
        silos, z = range(len(data)), setting.admitted[0].terms.noise_multiplier
        gate = replace(setting, party="both").gate(Tap(), silos, data, [f"path/{i}" for i in silos])
        add = partial(at_once, TrialSums(resolved, 0, "audit", z or 0.0))
        link = Summed(resolved, DirectLink(gate.answer), add)
    kinds: dict[tuple[tuple[Ask, ...], tuple[str, ...]], tuple[list[int], list[Broadcast]]] = {}

    def answer(round_index: int, broadcast: Broadcast, members: Sequence[int]) -> Answered:
        rounds, seen = kinds.setdefault((plan.rounds[round_index], tuple(sorted(broadcast))), ([], []))
        rounds.append(round_index)
        if len(rounds).bit_count() == 1:
            seen.append({name: value.reshape(-1) for name, value in broadcast.items()})
        return link.answer(round_index, broadcast, members)

    drive(setting, cast(Link, SimpleNamespace(answer=answer)))
    return tuple(Kind(*key, tuple(rounds), tuple(seen)) for key, (rounds, seen) in kinds.items())


def others(setting: Setting, silo: int) -> Others:
    """The kind of records that the attacker puts beside the one that differs."""
    samplers = {release.batch.sampler for release, _ in setting.census(silo)}
    if samplers <= {"full"}:
        return "own"
    return "silent" if "poisson" in samplers or setting.swapped > 1 else "copies"


def beside(setting: Setting, silo: int, kind: Others, first: Rows) -> Rows:
    """The silo's n units, of which one is to be replaced."""
    own = setting.data[silo]
    if kind == "own":
        return own
    if kind == "copies":
        n, records = num_units(own, setting.unit), len(first.target)
        owners = np.repeat(np.arange(n), records)
        return first.of(np.tile(np.arange(records), n))._replace(owners=owners)
    found = silent(own)
    if setting.resolved.mechanism.of_groups and isfinite(setting.longest):  # which its noise goes by
        found.features[:, :-1], found.features[:, -1] = 0.0, setting.longest
    return found
