"""A process's silos: their records, what a run would cost them, and a gate for each variant of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.data.federation import Hosted
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import CLIP_ONLY, NONE
from fedsim.privacy.silo_gaussian import DrawnAtOnce
from fedsim.protocol.blame import Blame, is_theirs, named, raised
from fedsim.protocol.contract import Message
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered, Variant
from fedsim.protocol.plan import Admitted, Statement, Terms
from fedsim.report.outcome import variants
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.clipping import ClippedTerms, Recorder, Watched
from fedsim.simulation.run_digest import run_digest
from server.participation import admitted_rounds, schedule
from silos.front.served import Served
from silos.vault.admission import admit
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, Row, lay_out
from silos.vault.owners import Owners

if TYPE_CHECKING:
    from fedsim.simulation.selection import Grant
    from silos.vault.ledger import Reply


class MemoryLedger:
    """`silos.vault.ledger.Ledger` in memory."""

    __slots__ = ("_digests", "_last", "_memory", "_refused", "_reply")

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._refused: dict[int, str] = {}  # from the debit on, until there is a reply
        self._last = -1
        self._reply: Reply | None = None
        self._memory: Reply = {}

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """See `Ledger`."""
        paid = self._digests.get(round_index)
        if paid is None:
            return None
        if paid != digest:
            raise Refused(f"round {round_index} was asked for with another broadcast")
        if round_index in self._refused:
            raise Refused(self._refused[round_index] or f"round {round_index} was begun and came to no reply")
        if round_index != self._last or self._reply is None:
            raise Refused(f"round {round_index} was answered; only the last reply is kept")
        return self._reply

    def debit(self, round_index: int, digest: bytes) -> None:
        """See `Ledger`."""
        if round_index in self._digests:
            raise Refused(f"round {round_index} is paid for already")
        self._refused[round_index] = ""
        self._digests[round_index] = digest

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`; no copies, since the gate lives as long."""
        self._last, self._reply, self._memory = round_index, reply, memory
        del self._refused[round_index]

    def refuse(self, round_index: int, reason: str) -> None:
        """See `Ledger`."""
        self._refused[round_index] = reason

    @property
    def memory(self) -> Reply:
        """See `Ledger`."""
        return self._memory

    @property
    def debited(self) -> list[int]:
        """See `Ledger`."""
        return list(self._digests)

    def digest(self, round_index: int) -> str:
        """See `Ledger`."""
        return self._digests[round_index].hex()

    def of(self, member: int) -> MemoryLedger:
        """A silo's own, where this one was kept for its whole cohort."""
        own = MemoryLedger()
        own._digests, own._refused, own._last = dict(self._digests), dict(self._refused), self._last
        own._reply = None if self._reply is None else Row(self._reply, member)
        own._memory = Row(self._memory, member)
        return own


class MemoryLedgers(Sequence[MemoryLedger]):
    """A cohort's: `together` is every silo's as long as none was taken. To read them, iterate."""

    def __init__(self, silos: int) -> None:
        self._silos, self._all, self._own = silos, MemoryLedger(), dict[int, MemoryLedger]()

    @property
    def together(self) -> MemoryLedger | None:
        """Of replies and memory {name: (silos, d)}; None from the first time on that a silo's was taken."""
        return None if self._own else self._all

    def __len__(self) -> int:
        return self._silos

    def __getitem__(self, member: Any) -> Any:
        if member not in self._own:
            self._own[member] = self._all.of(member)
        return self._own[member]

    def __iter__(self) -> Iterator[MemoryLedger]:
        return (self._own.get(member) or self._all.of(member) for member in range(self._silos))


@dataclass(frozen=True)
class DirectLink:
    """The server loop's link to silos that all answer: `ask` is a gate's `answer`, or that of several."""

    ask: Callable[[int, Message, Sequence[int]], Message]

    def answer(self, round_index: int, broadcast: Message, members: Sequence[int]) -> Answered:
        """See `fedsim.protocol.links.Link`."""
        return Answered(members, self.ask(round_index, broadcast, members))


class Hosts(Protocol):
    """All silos of a trial, in one process or several; members are positions in canonical order."""

    def open(self, variant: Variant, rounds: Sequence[Sequence[int]]) -> list[Admitted]:
        """Each silo's admission for its rounds, in canonical order; Refused if one does not accept."""

    def answer(
        self, variant: Variant, round_index: int, broadcast: Message, members: Sequence[int]
    ) -> Message:
        """The members' messages, as `Link.answer`."""

    def statements(self, variant: Variant) -> list[Statement]:
        """Each silo's account, in canonical order."""

    def own(self, variant: Variant) -> Tensor:
        """The silos' own parts of their models, (silos, d), in canonical order; for the evaluation alone."""

    def clipping(self) -> dict[int, ClippedTerms]:
        """What the clip took away, by round; empty without a recorder."""


def _open_cuda() -> None:
    """Take float32 at its word on the GPU, the same each time; InputError if there is none."""
    if not torch.cuda.is_available():
        raise InputError("scenario.runtime.device", "cuda", "cpu: no CUDA device is here")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True


class SiloHost:
    """Co-hosted silos of one trial; `members` are positions among them."""

    def __init__(
        self, resolved: Resolved, trial: int, data: Hosted, run: str | None = None, grant: Grant | None = None
    ) -> None:
        """One trial's silos.

        Args:
            run: keys the silos' noise, if the whole run is not to (`fedsim.simulation.run_digest`).
            grant: what private tuning priced for this run, which its gate must keep to.
        """
        if resolved.scenario.runtime.device == "cuda":
            _open_cuda()
        self._grant, self._resolved, self._trial = grant, resolved, trial
        self._data, self._run = data.digest, run
        self._names, own = data.silos.names, data.silos.train
        self._recorder = Recorder() if resolved.scenario.report.clipping else None
        problem, dtype, recorder = resolved.gate_problem, resolved.dtype, self._recorder
        unit, seeded = resolved.scenario.privacy.unit, (resolved.scenario.seed, trial, self._names)
        laid_out = own, problem, dtype, Owners.of(unit, (rows.owners for rows in own), seeded)
        self._records = lay_out(*laid_out) if recorder is None else Watched(recorder, *laid_out)
        self._gates: dict[Variant, Served] = {}
        self._ledgers: dict[Variant, MemoryLedgers] = {}
        self._at_once = DrawnAtOnce() if resolved.scenario.runtime.noise == "aggregate" else None
        if resolved.scenario.evaluate is not None:
            held_out = Hosted(replace(data.silos, train=data.silos.test), data.digest)  # in their place
            key = run_digest(resolved, data.digest, "evaluation")
            self._held_out = SiloHost(evaluation_of(resolved), trial, held_out, key)

    def open(self, variant: Variant, rounds: Sequence[Sequence[int]]) -> list[Admitted]:
        """Admission: every silo prices the plan for its own rounds. Refused if a silo does not accept the
        plan, or a grant's gate or that of the evaluation has its records already.
        """
        if variant == "evaluation":
            if variant in self._gates:
                raise Refused("one evaluation of a run is paid for")
            main = variants(self._resolved)[0]
            admitted = self._held_out.open(main, rounds)
            self._gates[variant] = self._held_out._gates[main]
            return admitted
        if self._grant is not None and self._gates:
            raise Refused("this run's gate was given its records already; one is paid for")
        resolved, names, plan = self._resolved, self._names, self._resolved.trace.plan
        usual = self._at_once or resolved.mechanism
        mechanism = {"clipped": CLIP_ONLY, "nonprivate": NONE}.get(variant, usual)
        algorithm, problem = resolved.beside.get(variant, resolved.gate_algorithm), resolved.gate_problem
        ledgers = self._ledgers[variant] = MemoryLedgers(len(names))
        run = self._run or run_digest(resolved, self._data, variant)
        entropy = SeededEntropy(resolved.scenario.seed, self._trial, names, [run] * len(names))
        if mechanism.sums_only:
            everyone = {own.name: own for own in agreed_terms(resolved, self._trial)}
            silos = [everyone[name] for name in names]
        else:
            silos = terms(resolved, names, rounds, mechanism)
        asked = LIMITS, resolved.dtype, resolved.trace.broadcasts
        gate = Served(
            Gate(self._records, problem, plan, silos, mechanism, entropy, ledgers, *asked), algorithm
        )
        if self._grant is not None:
            self._grant.check(plan, gate.admitted)
        self._gates[variant] = gate
        return gate.admitted

    def answer(
        self, variant: Variant, round_index: int, broadcast: Message, members: Sequence[int] | None
    ) -> dict[str, Tensor]:
        """The members' messages, {name: (members, d)}. Refused as `Gate.answer`; PluginError if another
        package's algorithm or problem raised; a simulation may name it.
        """
        if self._recorder is not None:
            self._recorder.begin(None if variant in ("clipped", "one", "alone") else round_index)
        if (once := self._at_once) is not None:
            run, silos = self._resolved, members or range(len(self._names))
            shares = [(run.weights[silo], run.sizes[silo]) for silo in silos]
            once.begin(run.trace.plan.rounds[round_index], shares)
        try:
            return self._gates[variant].answer(round_index, broadcast, members)
        except (InputError, Refused):
            raise
        except Exception as error:
            where, problem = f"silo method, round {round_index}", self._resolved.problem
            if is_theirs(error, problem):
                raise PluginError(f"{named('problem', type(problem))}, {where}: {raised(error)}") from error
            if is_theirs(error, self._resolved.algorithm):
                Blame(self._resolved.algorithm).failed(where, error)
            raise  # what fedsim raises stays as it is

    def statements(self, variant: Variant) -> list[Statement]:
        """Each silo's account of the run."""
        return self._gates[variant].statements()

    def own(self, variant: Variant) -> Tensor:
        """See `Hosts`; 0 before a silo's first reply. No deployed silo has this way out of its memory, which
        is in its ledger, for its operator alone (`silos.front.own_model`).
        """
        name, nothing = self._resolved.own, torch.zeros(self._resolved.problem.dimension)
        rows = [ledger.memory.get(name or "", nothing) for ledger in self._ledgers[variant]]
        return torch.stack([row.to(self._resolved.dtype) for row in rows])

    def clipping(self) -> dict[int, ClippedTerms]:
        """Counts of clipped terms, by round; simulation only."""
        return {} if self._recorder is None else self._recorder.rounds()


def terms(
    resolved: Resolved, names: Sequence[str], rounds: Sequence[Sequence[int]], mechanism: Mechanism
) -> list[Terms]:
    """The named silos' terms of admission; `rounds` are theirs, in the same order."""
    position = {name: i for i, name in enumerate(resolved.names)}
    private, given, found = mechanism.private, resolved.noise_multipliers, []
    for i, own in zip((position[name] for name in names), rounds, strict=True):
        epsilon, noise = (resolved.epsilons[i], given[i] if given else None) if private else (inf, None)
        public = private and resolved.public_silos[i]
        about = resolved.names[i], resolved.sizes[i], epsilon, resolved.deltas[i]
        found.append(Terms(*about, own, noise, public=public))
    return found


def silos_rounds(run: Resolved, trial: int) -> list[Sequence[int]]:
    """The rounds that each silo is admitted for in one run."""
    rounds = schedule(len(run.names), run.active, run.trace.holds, run.scenario.seed, trial)
    own = admitted_rounds(run.active, rounds, len(run.names))
    return [rounds if isinstance(rounds, range) else tuple(rounds) for rounds in own]


def agreed_terms(resolved: Resolved, trial: int) -> list[Terms]:
    """All silos' terms of a trial, in canonical order; under secure aggregation with the agreed noise.
    Refused if a silo cannot afford the plan.
    """
    offered = terms(resolved, resolved.names, silos_rounds(resolved, trial), resolved.mechanism)
    if resolved.sums is None:
        return offered
    given = resolved.noise_multipliers
    return resolved.sums.agreed(resolved.trace.plan, offered, None if given is None else given[0])


def preview(resolved: Resolved, trial: int = 0) -> list[Admitted]:
    """Every silo's admission in canonical order, for one trial. Refused if a silo cannot afford the plan."""
    return admit(resolved.trace.plan, agreed_terms(resolved, trial), resolved.mechanism, LIMITS)


def preview_evaluation(resolved: Resolved) -> list[Admitted]:
    """Admission of the run's evaluation; empty where it has none. Refused as `preview`."""
    return [] if resolved.scenario.evaluate is None else preview(evaluation_of(resolved))


def second_opinions(resolved: Resolved, admitted: list[Admitted]) -> list[float]:
    """The silos' epsilons as dp-accounting composes them; equal cases are priced once."""
    from fedsim.privacy import verify

    price = cache(verify.epsilon)
    plan = resolved.trace.plan
    return [
        price(plan.census(silo.terms.rounds), silo.terms.n, silo.noise_multiplier, silo.terms.delta)
        if silo.noise_multiplier
        else inf
        for silo in admitted
    ]
