"""Ray: a trial runs in an actor, and its silos in the same one or on silo-host actors.

Actors are reused by later trials, since starting one costs seconds. Nothing is ever retried by Ray:
a private step that ran twice would have to be paid for twice. Records are read where their silos
live; only those that are in memory already travel there.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.common.process import check_reachable
from fedsim.data.federation import Hosted, load_silos
from fedsim.measure.evaluator import odd_records
from fedsim.protocol.links import Variant
from fedsim.protocol.plan import Admitted, Statement
from fedsim.report.outcome import Observer, Results, TrialResult
from fedsim.report.record import Measurement
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg.reports import Words
from fedsim.simulation.clipping import Part, together
from fedsim.simulation.failures import WorkerLost, death
from fedsim.simulation.host import SiloHost
from fedsim.simulation.secure_aggregation import Party
from fedsim.simulation.trial import Trial, evaluator, in_one_process, read

# Before Ray is imported: otherwise it listens on every interface and reports usage.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise it warns at every start
import ray

_SLICE = 0.25  # seconds of work between two reports to the driver
_LOST = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, ray.exceptions.OutOfMemoryError)
_INSTALLED = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
_OBJECT_STORE = 100 * 2**20  # messages are small and passed inline


def execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    """Run every trial that is left on Ray, adding to `results` as it goes; leaves no process of ours behind.

    Raises:
        Refused: a silo does not accept the plan, or a request within it.
        InputError: the data cannot be read or divided as asked, or this process has a Ray already.
        WorkerLost: the process of a trial or of its silos was ended from outside; `results` keeps the rest.
    """
    scenario = resolved.scenario
    left = results.left(scenario.trials)
    if not left:
        return
    check_place()
    actors: list[Any] = []
    others = set(psutil.Process().children(recursive=True))
    try:
        start(scenario.runtime.address)
        workers = min(len(left), cpus())
        with by_value(isinstance(scenario.algorithm, GivenAlgorithm)):
            actors += [_TrialActor.remote(scenario) for _ in range(workers)]
        _drive(actors, left, results, observe)
    except ray.exceptions.RayError as error:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        if isinstance(cause, _LOST):
            lost = death(cause)
            raise WorkerLost(f"a trial's worker is lost ({lost.kind}): {lost.message}") from None
        raise cause from None
    finally:
        stop(actors, others)


@contextmanager
def by_value(given: bool) -> Iterator[None]:
    """Inside, the class of an algorithm that was given as an object travels whole, and the modules it uses.

    Ray sends a class of a script or a notebook so, and of a module only its name, which other processes may
    not find where no installation has it.
    """
    modules = [each for each in list(sys.modules.values()) if given and _lies_elsewhere(each)]
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _lies_elsewhere(module: ModuleType) -> bool:
    """Whether a module's file is of no installation, ours included."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "__main__")
    if not file or name == "__main__" or name.partition(".")[0] in ("fedsim", "silos", "server", "shuffler"):
        return False
    return not any(Path(file).is_relative_to(place) for place in _INSTALLED)


def stop(actors: Sequence[Any], others: set[psutil.Process]) -> None:
    """Shut down, and end what an interrupt in the middle of Ray's start-up would leave behind."""
    for actor in actors:  # on a cluster that stays, their processes must not
        ray.kill(actor)
    ours = set(psutil.Process().children(recursive=True)) - others
    ray.shutdown()
    _, alive = psutil.wait_procs(ours, timeout=0.5)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def cpus() -> int:
    """CPUs of the Ray that runs."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(resources.get("CPU", 1)))


def check_place() -> None:
    """Refuse a process that runs a Ray already: ours ends with a run, and a caller's must not. InputError if
    the caller has started one.
    """
    if ray.is_initialized():
        hint = "this process has a Ray of its own: call ray.shutdown() first, or take runtime inprocess"
        raise InputError("scenario.runtime", "ray", hint)


def start(address: str | None) -> None:
    """Start a Ray that listens on this machine alone, or join the one at `address`. InputError if none
    answers there.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        check_reachable(address, "scenario.runtime.address")
        try:
            ray.init(address=address, **quiet)
        except ConnectionError as error:
            hint = f"no Ray cluster answers there ({error})"
            raise InputError("scenario.runtime.address", address, hint) from None
        return
    ray.init(
        address="local",
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=_OBJECT_STORE,
        **quiet,
    )


def _drive(actors: list[Any], trials: Sequence[int], results: Results, observe: Observer) -> None:
    """Give each actor a trial, then slices of work, until no trial is left."""
    waiting = iter(trials)
    pending = {actor.advance.remote(next(waiting), _SLICE): actor for actor in actors}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=1.0)
        for future in ready:
            actor = pending.pop(future)
            measured, result = ray.get(future)
            for measurement in measured:
                results.add(measurement)
                observe(measurement)
            if result is not None:
                results.finish(result)
            following = next(waiting, None) if result is not None else None
            if result is None or following is not None:
                pending[actor.advance.remote(following, _SLICE)] = actor


class TrialWorker:
    """Runs trials one after another in a process of its own."""

    def __init__(self, scenario: Scenario) -> None:
        torch.set_num_threads(1)
        self._resolved = resolve(scenario)
        self._trial: Trial | None = None

    def advance(self, start: int | None, seconds: float) -> tuple[list[Measurement], TrialResult | None]:
        """Begin trial `start` if given; work; return what was measured, and the result once finished."""
        if start is not None:
            self._trial = self._begin(start)
        assert self._trial is not None
        measured = self._trial.advance(seconds)
        return measured, self._trial.result() if self._trial.finished else None

    def _begin(self, trial: int) -> Trial:
        hosts = self._resolved.scenario.runtime.silo_hosts
        if hosts == 0:
            return in_one_process(self._resolved, trial, _RemoteParty)
        data = read(self._resolved, trial)
        remote = _RemoteHosts(self._resolved, trial, data.digest, hosts)
        measures = evaluator(self._resolved, data)
        odd = odd_records(data)
        return Trial(self._resolved, trial, remote, measures, data.digest, _RemoteParty, odd, data.fitted)


class HostWorker(SiloHost):
    """A silo host in a process of its own; only public tensors and noisy messages pass, as arrays."""

    def __init__(self, scenario: Scenario, trial: int, names: list[str], digest: str) -> None:
        """Read the records of the named silos alone; `digest` is `Federation.digest`, of all silos."""
        torch.set_num_threads(1)
        resolved = resolve(scenario)
        silos = load_silos(scenario.data, scenario.partition, scenario.seed, trial, names)
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

    def __init__(self, resolved: Resolved, trial: int, digest: str, hosts: int) -> None:
        total = len(resolved.names)
        count = min(hosts, total)
        bounds = [total * k // count for k in range(count + 1)]
        self._ranges = [range(a, b) for a, b in pairwise(bounds)]
        with by_value(isinstance(resolved.scenario.algorithm, GivenAlgorithm)):
            self._actors = [
                _HostActor.remote(
                    resolved.scenario, trial, list(resolved.names[own.start : own.stop]), digest
                )
                for own in self._ranges
            ]

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
        futures = []
        for actor, own in zip(self._actors, self._ranges, strict=True):
            local = [member - own.start for member in members if member in own]
            if local:
                futures.append(actor.answer.remote(variant, round_index, arrays, local))
        parts = ray.get(futures)
        return {name: torch.cat([torch.from_numpy(part[name].copy()) for part in parts]) for name in parts[0]}

    def statements(self, variant: Variant) -> list[Statement]:
        parts = ray.get([actor.statements.remote(variant) for actor in self._actors])
        return [statement for part in parts for statement in part]

    def clipping(self) -> dict[int, Part]:
        return together(ray.get([actor.clipping.remote() for actor in self._actors]))
