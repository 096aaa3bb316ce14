"""Ray: a trial runs in an actor, and its silos in the same one or on silo-host actors.

Actors are reused by later trials, since starting one costs seconds. Nothing is ever retried by Ray:
a private step that ran twice would have to be paid for twice. A trial that a dying node took with it is
begun again from its start, whose noise follows from its seed. Records are read where their silos live; only
those that are in memory already travel there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import psutil
import torch
from torch import Tensor

from fedsim.common.process import keep_to_one_thread
from fedsim.data.federation import Federation, Hosted, load_silos
from fedsim.protocol.links import Variant
from fedsim.protocol.plan import Admitted, Statement
from fedsim.report.outcome import Observer, Results, TrialResult
from fedsim.report.record import Measurement
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg.reports import Words
from fedsim.simulation import cluster
from fedsim.simulation.clipping import ClippedTerms, together
from fedsim.simulation.cluster import ray
from fedsim.simulation.failures import WorkerLost, death
from fedsim.simulation.host import SiloHost
from fedsim.simulation.secure_aggregation import Party
from fedsim.simulation.trial import Trial, trial_of

_SLICE = 0.25  # seconds of work between two reports to the driver
_LOST = (
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)


def execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    """Run every trial that is left on Ray, adding to `results` as it goes; leaves no process of ours behind.

    Raises:
        Refused: a silo does not accept the plan, or a request within it.
        InputError: the data cannot be read or divided as asked, or this process has a Ray already.
        WorkerLost: the process of a trial or of its silos was ended from outside, but not with its node, or
            no node is left; `results` keeps the rest.
    """
    scenario = resolved.scenario
    left = results.left(scenario.trials)
    if not left:
        return
    cluster.check_place()
    drive = _Drive(scenario, results, observe)
    others = set(psutil.Process().children(recursive=True))
    try:
        cluster.start(scenario.runtime.address)
        drive.run(left)
    except ray.exceptions.RayError as error:
        cause = _cause(error)
        if isinstance(cause, _LOST):
            lost = death(cause)
            raise WorkerLost(f"a trial's worker is lost ({lost.kind}): {lost.message}") from None
        raise cause from None
    finally:
        cluster.stop(list(drive.actors), others)


def _cause(error: Exception) -> Exception:
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else error


class _Drive:
    """Gives each actor a trial, then slices of work, until no trial is left.

    A trial that is begun again measures the same numbers, and those that were observed are not added twice.
    """

    def __init__(self, scenario: Scenario, results: Results, observe: Observer) -> None:
        self._scenario, self._results, self._observe = scenario, results, observe
        self.actors: dict[Any, str] = {}  # with their nodes
        self._nodes: dict[str, int] = {}
        self._waiting = deque[int]()
        self._pending: dict[Any, tuple[Any, int, Mapping[str, int]]] = {}  # actor, trial, nodes at its start
        self._observed: dict[int, int] = defaultdict(int)  # measurements, by trial
        self._again: dict[int, int] = {}  # of a trial that was begun again, those that come once more

    def run(self, trials: Sequence[int]) -> None:
        self._waiting, self._nodes = deque(trials), cluster.living()
        self._fill()
        while self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=1.0)
            for future in ready:
                self._collect(future)

    def _fill(self) -> None:
        """An actor at every place that has none, while trials wait."""
        taken = list(self.actors.values())
        for node in cluster.places(self._nodes):
            if node in taken:
                taken.remove(node)
            elif self._waiting:
                with cluster.by_value(isinstance(self._scenario.algorithm, GivenAlgorithm)):
                    actor = _TrialActor.options(**cluster.on(node)).remote(self._scenario)
                self.actors[actor] = node
                self._begin(actor)

    def _begin(self, actor: Any) -> None:
        if not self._waiting:
            self._end(actor)
            return
        trial = self._waiting.popleft()
        self._pending[actor.advance.remote(trial, _SLICE)] = actor, trial, self._nodes

    def _end(self, actor: Any) -> None:
        ray.kill(actor)
        del self.actors[actor]

    def _collect(self, future: Any) -> None:
        actor, trial, known = self._pending.pop(future)
        try:
            measured, result = ray.get(future)
        except ray.exceptions.RayError as error:
            self._begin_again(actor, trial, known, error)
            return
        for measurement in measured:
            if self._again.get(trial, 0):
                self._again[trial] -= 1
                continue
            self._observed[trial] += 1
            self._results.add(measurement)
            self._observe(measurement)
        if result is None:
            self._pending[actor.advance.remote(None, _SLICE)] = actor, trial, known
            return
        self._results.finish(result)
        self._begin(actor)

    def _begin_again(
        self, actor: Any, trial: int, known: Mapping[str, int], error: ray.exceptions.RayError
    ) -> None:
        """A trial of which a process died. If no node did, it was the process itself: raises the error."""
        if not isinstance(_cause(error), _LOST):
            raise error
        self._nodes = cluster.after_loss()
        if known.keys() <= self._nodes.keys():
            raise error
        self._waiting.appendleft(trial)
        self._again[trial] = self._observed[trial]
        if isinstance(error, ray.exceptions.RayTaskError):  # it lives, and a host of its silos was lost
            self._begin(actor)
        else:
            self._end(actor)
            self._fill()


class TrialWorker:
    """Runs trials one after another in a process of its own."""

    def __init__(self, scenario: Scenario) -> None:
        keep_to_one_thread()
        self._resolved = resolve(scenario)
        self._trial: Trial | None = None

    def advance(self, start: int | None, seconds: float) -> tuple[list[Measurement], TrialResult | None]:
        """Begin trial `start` if given; work; return what was measured, and the result once finished."""
        if start is not None:
            hosts = _RemoteHosts if self._resolved.scenario.runtime.silo_hosts else SiloHost
            self._trial = trial_of(self._resolved, start, _RemoteParty, hosts)
        assert self._trial is not None
        measured = self._trial.advance(seconds)
        return measured, self._trial.result() if self._trial.finished else None


class HostWorker(SiloHost):
    """A silo host in a process of its own; only public tensors and noisy messages pass, as arrays, and
    own parts to the evaluator.
    """

    def __init__(self, scenario: Scenario, trial: int, names: list[str], digest: str) -> None:
        """Read the records of the named silos alone; `digest` is `Federation.digest`, of all silos."""
        keep_to_one_thread()
        resolved = resolve(scenario)
        unit = scenario.privacy.unit
        silos = load_silos(scenario.data, scenario.partition, scenario.seed, trial, names, unit)
        super().__init__(resolved, trial, Hosted(silos, digest))

    def answer(
        self, variant: Variant, round_index: int, broadcast: Mapping[str, Any], members: Sequence[int] | None
    ) -> dict[str, Any]:
        """See `SiloHost.answer`; arrays arrive read-only, so they are copied before torch sees them."""
        tensors = {name: torch.from_numpy(value.copy()) for name, value in broadcast.items()}
        reply = super().answer(variant, round_index, tensors, members)
        return {name: value.numpy() for name, value in reply.items()}


_TrialActor: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(TrialWorker)
_PartyActor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Party)
_HostActor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(HostWorker)


class _RemoteParty(Party):
    """The shuffler in an actor of its own: what it holds is in no process of the server or of a silo."""

    def __init__(self) -> None:
        self._actor = _PartyActor.remote()

    def add(self, shares: Words) -> Words:
        words: Words = ray.get(self._actor.add.remote(shares))
        return words.copy()  # it comes read-only

    def pin(self, roster: dict[str, Any]) -> None:
        ray.get(self._actor.pin.remote(roster))

    def keys(self) -> dict[str, str]:
        keys: dict[str, str] = ray.get(self._actor.keys.remote())
        return keys

    def shuffle(self, request: bytes) -> bytes:
        frame: bytes = ray.get(self._actor.shuffle.remote(request))
        return frame


class _RemoteHosts:
    """A trial's silos on k silo-host actors, in consecutive runs of the canonical order."""

    def __init__(self, resolved: Resolved, trial: int, data: Federation) -> None:
        total = len(resolved.names)
        count = min(resolved.scenario.runtime.silo_hosts, total)
        bounds = [total * k // count for k in range(count + 1)]
        self._ranges = [range(a, b) for a, b in pairwise(bounds)]
        with cluster.by_value(isinstance(resolved.scenario.algorithm, GivenAlgorithm)):
            own = [list(resolved.names[each.start : each.stop]) for each in self._ranges]
            self._actors = [_HostActor.remote(resolved.scenario, trial, each, data.digest) for each in own]

    def open(self, variant: Variant, rounds: Sequence[Sequence[int]]) -> list[Admitted]:
        futures = [
            actor.open.remote(variant, list(rounds[own.start : own.stop]))
            for actor, own in zip(self._actors, self._ranges, strict=True)
        ]
        return [admitted for part in ray.get(futures) for admitted in part]

    def answer(
        self, variant: Variant, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]
    ) -> dict[str, Tensor]:
        arrays = {name: value.numpy() for name, value in broadcast.items()}
        futures = [
            actor.answer.remote(variant, round_index, arrays, local)
            for actor, own in zip(self._actors, self._ranges, strict=True)
            if (local := [member - own.start for member in members if member in own])
        ]
        parts = ray.get(futures)
        return {name: torch.cat([torch.from_numpy(part[name].copy()) for part in parts]) for name in parts[0]}

    def statements(self, variant: Variant) -> list[Statement]:
        parts = ray.get([actor.statements.remote(variant) for actor in self._actors])
        return [statement for part in parts for statement in part]

    def own(self, variant: Variant) -> Tensor:
        parts = ray.get([actor.own.remote(variant) for actor in self._actors])
        return torch.cat([part.clone() for part in parts])

    def clipping(self) -> dict[int, ClippedTerms]:
        return together(ray.get([actor.clipping.remote() for actor in self._actors]))
