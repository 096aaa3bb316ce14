"""Batches of cells on Ray workers, or in this process. Workers start once and are used again."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import psutil
import torch

from fedsim.common.objects import all_standing, stand
from fedsim.common.process import keep_memory, one_thread
from fedsim.simulation.failures import Failure, WorkerLost, death, failure
from fedsim.simulation.sweeps.cell import Cell, CellOutcome, records_key
from fedsim.simulation.sweeps.run_cells import run_batch

Batch = Sequence[Cell]
Finished = tuple[Cell, CellOutcome]
T = TypeVar("T")
_AHEAD = 2  # batches a worker has been given: the next one waits there, so that it is never idle


class Local:
    """No workers: cells run here, one batch after another."""

    def run(self, batches: Sequence[Batch]) -> Iterator[Finished]:
        """Each cell with its outcome, in order."""
        for batch in batches:
            with one_thread():
                outcomes = run_batch(batch)
            yield from zip(batch, outcomes, strict=True)

    def each(self, function: Callable[[Cell], T], cells: Sequence[Cell]) -> Iterator[T]:
        """The function's value for each cell, in their order."""
        for cell in cells:
            with one_thread():
                made = function(cell)
            yield made


class Workers(AbstractContextManager["Workers"]):
    """Ray actors, one CPU each. Ray starts with the first batch, and all its processes end on leaving.

    A worker runs what it was given in order, so the oldest of its batches is the one that it died in.
    If that is one cell, the cell has failed; if several, each is run again in a batch of its own. This
    runs a simulation again, whose noise follows from its seed: no silo answers twice.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        self._wanted, self._address = workers, address
        self._actors: list[Any] = []
        self._waiting = deque[tuple[str, Batch]]()  # with the records that each reads first
        self._given: list[deque[tuple[Any, Batch]]] = []
        self._homes: dict[str, int] = {}  # by `records_key` the worker that has read the records first
        self._started = False
        self._others = set(psutil.Process().children(recursive=True))

    def __exit__(self, *_: object) -> None:
        if self._started:
            from fedsim.simulation import on_ray as ray_runtime

            ray_runtime.stop(self._actors, self._others)

    def run(self, batches: Sequence[Batch]) -> Iterator[Finished]:
        """Each cell with its outcome, in any order.

        WorkerLost if no node is left, so that new workers would be waited for in vain.
        """
        import ray

        if batches and not self._started:
            self._start()
        self._waiting = deque(map(_keyed, batches))
        self._hand_out()
        while any(self._given):
            oldest = {queue[0][0]: place for place, queue in enumerate(self._given) if queue}
            ready, _ = ray.wait(list(oldest), num_returns=1, timeout=1.0)
            for future in ready:
                yield from self._collect(future, oldest[future])
            if not ready and not _nodes():
                raise WorkerLost("Ray itself was ended from outside, perhaps for want of memory")
            self._hand_out()

    def each(self, function: Callable[[Cell], T], cells: Sequence[Cell]) -> Iterator[T]:
        """The function's value for each cell, in their order. WorkerLost if a worker died over one."""
        import ray

        if cells and not self._started:
            self._start()
        turns = itertools.cycle(range(len(self._actors)))
        takers = [self._actors[self._homes.get(_key(cell), next(turns))] for cell in cells]
        for future in [taker.each.remote(function, cell) for cell, taker in zip(cells, takers, strict=True)]:
            try:
                yield ray.get(future)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise WorkerLost(death(error).message) from None

    def _start(self) -> None:
        from fedsim.simulation import on_ray as ray_runtime

        ray_runtime.check_place()
        self._started = True
        ray_runtime.start(self._address)
        count = min(self._wanted or ray_runtime.cpus(), ray_runtime.cpus())
        self._actors += [_actor() for _ in range(count)]
        self._given = [deque() for _ in range(count)]

    def _hand_out(self) -> None:
        for depth in range(1, _AHEAD + 1):
            for place, (actor, queue) in enumerate(zip(self._actors, self._given, strict=True)):
                if self._waiting and len(queue) < depth:
                    batch = self._take(place)
                    queue.append((actor.run.remote(list(batch)), batch))

    def _take(self, place: int) -> Batch:
        """The next batch whose records no other worker has, as preparing takes seconds; else the next."""
        free = (at for at, (key, _) in enumerate(self._waiting) if self._homes.get(key, place) == place)
        at = next(free, 0)
        key, batch = self._waiting[at]
        del self._waiting[at]
        self._homes.setdefault(key, place)
        return batch

    def _collect(self, future: Any, place: int) -> list[Finished]:
        import ray

        try:
            outcomes = ray.get(future)
        except ray.exceptions.RayTaskError as error:  # it could not even be read, or not sent back
            return self._lost(place, failure(error.cause), dead=False)
        except ray.exceptions.RayError as error:
            return self._lost(place, death(error), dead=True)
        _, batch = self._given[place].popleft()
        return list(zip(batch, outcomes, strict=True))

    def _lost(self, place: int, why: Failure, dead: bool) -> list[Finished]:
        _, culprit = self._given[place].popleft()
        if dead:
            rest = [batch for _, batch in self._given[place]]
            self._waiting.extendleft(map(_keyed, reversed(rest)))
            self._given[place].clear()
            self._actors[place] = _actor()
        if len(culprit) == 1:
            return [(culprit[0], why)]
        self._waiting.extendleft(_keyed([cell]) for cell in reversed(culprit))
        return []


Runner = Local | Workers


def _keyed(batch: Batch) -> tuple[str, Batch]:
    return _key(batch[0]), batch


def _key(cell: Cell) -> str:
    return records_key(cell.scenario, cell.trial)


class CellWorker:
    """Runs batches in a separate process."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        for key, thing in objects.items():
            stand(key, thing)
        torch.set_num_threads(1)
        keep_memory()

    def run(self, cells: list[Cell]) -> list[CellOutcome]:
        """Run the cells of one batch."""
        return run_batch(cells)

    def each(self, function: Callable[[Cell], T], cell: Cell) -> T:
        """Apply the function to one cell."""
        return function(cell)


def _actor() -> Any:
    import ray

    from fedsim.simulation.on_ray import by_value

    remote: Callable[..., Any] = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(CellWorker)
    with by_value(True):
        return remote.remote(all_standing())  # type: ignore[attr-defined]


def _nodes() -> list[Any]:
    import ray

    nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]
