"""Batches of cells on Ray workers, or in this process. Workers start once and are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psutil

from fedsim.common.objects import all_standing, stand
from fedsim.common.process import keep_memory, keep_to_one_thread, one_thread
from fedsim.simulation.failures import Failure, WorkerLost, death, failure
from fedsim.simulation.sweeps.cell import Cell, records_key
from fedsim.simulation.sweeps.run_cells import run_batch

Batch = Sequence[Cell]
Work = Callable[[Batch], Sequence[Any]]  # the outcome of each cell of a batch, in order
Finished = tuple[Cell, Any]  # with its outcome, or the `Failure` of its worker
_AHEAD = 2  # batches a worker has been given: the next one waits there, so that it is never idle


class Local:
    """No workers: cells run here, one batch after another."""

    def run(self, batches: Sequence[Batch], work: Work = run_batch) -> Iterator[Finished]:
        """Each cell with its outcome, in order."""
        for batch in batches:
            with one_thread():
                outcomes = work(batch)
            yield from zip(batch, outcomes, strict=True)


@dataclass(eq=False)
class _Place:
    """A CPU of the cluster, with a worker and what it was given, the oldest first."""

    node: str
    actor: Any
    given: deque[tuple[Any, Batch]] = field(default_factory=deque)


class Workers(AbstractContextManager["Workers"]):
    """Ray actors, one CPU each. Ray starts with the first batch, and all its processes end on leaving.

    A worker runs what it was given in order, so the oldest of its batches is the one that it died in.
    If that is one cell, the cell has failed; if several, each is run again in a batch of its own. What a
    node takes with it when it dies is run again by the workers that are left. Both run a simulation again,
    whose noise follows from its seed: no silo answers twice.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        self._wanted, self._address = workers, address
        self._places: list[_Place] = []
        self._waiting = deque[tuple[str, Batch]]()  # with the records that each reads first
        self._homes: dict[str, _Place] = {}  # by `records_key` the worker that has read the records first
        self._work: Work = run_batch
        self._started = False
        self._others = set(psutil.Process().children(recursive=True))

    def __exit__(self, *_: object) -> None:
        if self._started:
            from fedsim.simulation import cluster

            cluster.stop([place.actor for place in self._places], self._others)

    def run(self, batches: Sequence[Batch], work: Work = run_batch) -> Iterator[Finished]:
        """Each cell with its outcome, in any order. WorkerLost if no node is left."""
        from fedsim.simulation.cluster import ray

        if batches and not self._started:
            self._start()
        self._waiting, self._work = deque(map(_keyed, batches)), work
        self._hand_out()
        while oldest := {place.given[0][0]: place for place in self._places if place.given}:
            ready, _ = ray.wait(list(oldest), num_returns=1, timeout=1.0)
            for future in ready:
                yield from self._collect(future, oldest[future])
            self._hand_out()

    def _start(self) -> None:
        from fedsim.simulation import cluster

        cluster.check_place()
        self._started = True
        cluster.start(self._address)
        self._places = [_Place(node, _actor(node)) for node in cluster.places(cluster.living(), self._wanted)]

    def _hand_out(self) -> None:
        for depth in range(1, _AHEAD + 1):
            for place in self._places:
                if self._waiting and len(place.given) < depth:
                    # the next whose records no other worker has, as preparing takes seconds; else the next
                    keys = enumerate(key for key, _ in self._waiting)
                    at = next((at for at, key in keys if self._homes.get(key, place) is place), 0)
                    key, batch = self._waiting[at]
                    del self._waiting[at]
                    self._homes.setdefault(key, place)
                    place.given.append((place.actor.run.remote(self._work, list(batch)), batch))

    def _collect(self, future: Any, place: _Place) -> list[Finished]:
        from fedsim.simulation.cluster import ray

        try:
            outcomes = ray.get(future)
        except ray.exceptions.RayTaskError as error:  # it could not even be read, or not sent back
            return self._failed(place.given.popleft()[1], failure(error.cause))
        except ray.exceptions.RayError as error:
            return self._lost(place, death(error))
        _, batch = place.given.popleft()
        return list(zip(batch, outcomes, strict=True))

    def _lost(self, place: _Place, why: Failure) -> list[Finished]:
        batches = [batch for _, batch in place.given]
        place.given.clear()
        if self._renew(place):  # the node was lost, and the cells have done nothing
            self._waiting.extendleft(map(_keyed, reversed(batches)))
            return []
        culprit, *rest = batches
        self._waiting.extendleft(map(_keyed, reversed(rest)))
        return self._failed(culprit, why)

    def _failed(self, batch: Batch, why: Failure) -> list[Finished]:
        if len(batch) == 1:
            return [(batch[0], why)]
        self._waiting.extendleft(_keyed([cell]) for cell in reversed(batch))
        return []

    def _renew(self, place: _Place) -> bool:
        """A new worker for a lost one; True where its node is lost too. WorkerLost if no place is left."""
        from fedsim.simulation import cluster

        if place.node in cluster.after_loss():
            cluster.ray.kill(place.actor)  # one that is not to be reached would hold the CPU
            place.actor = _actor(place.node)
            return False
        self._places.remove(place)
        self._homes = {key: home for key, home in self._homes.items() if home is not place}
        if not self._places:
            raise WorkerLost("Ray itself was ended from outside, perhaps for want of memory")
        return True


Runner = Local | Workers


def _keyed(batch: Batch) -> tuple[str, Batch]:
    return records_key(batch[0].scenario, batch[0].trial), batch


class CellWorker:
    """Runs batches in a separate process."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        for key, thing in objects.items():
            stand(key, thing)
        keep_to_one_thread()
        keep_memory()

    def run(self, work: Work, cells: list[Cell]) -> Sequence[Any]:
        """The outcomes of the cells of one batch."""
        return work(cells)


def _actor(node: str) -> Any:
    from fedsim.simulation import cluster

    remote: Any = cluster.ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(CellWorker)
    with cluster.by_value(True):
        return remote.options(**cluster.on(node)).remote(all_standing())
