"""The worst server: in every round the broadcast at which the two worlds' records tell most.

It hears each answer of the gate by itself, which is what the plan is priced for; where a silo sends something
made of several answers (local SGD) that is more than it sends. The claim holds for every data set, so the
other records are chosen by the attacker too where batches are sampled: copies of the first record, or under
Poisson sampling records that count as zero, so that nothing but the noise hides the one that differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.bench import Bench, Record, alone, narrowed, shape_of, shared
from fedsim.attacks.contributions import anonymous
from fedsim.attacks.gates import Data
from fedsim.attacks.score import Places, Scores
from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Setting
from fedsim.attacks.wiretap import Heard, Tap, Wiretap
from fedsim.protocol.batch import Batch
from fedsim.protocol.plan import QueryShape

Others = Literal["own", "copies", "silent"]
_CHUNK = 2_000_000
"""Numbers that the records of the clones which run together take, about: 16 MB."""

Key = tuple[int, int]
Done = Callable[[int], None]


class Samples(NamedTuple):
    """Scores of runs in the two worlds; larger in the second."""

    first: np.ndarray
    second: np.ndarray


def others(setting: Setting, silo: int) -> Others:
    """Which records the attacker puts beside the one that differs."""
    samplers = {release.batch.sampler for release, _ in setting.census(silo)}
    if samplers <= {"full"}:
        return "own"
    return "silent" if "poisson" in samplers else "copies"


def beside(setting: Setting, silo: int, kind: Others, first: Record) -> Data:
    """The silo's n records, of which the first is to be replaced."""
    x, y = setting.data[silo]
    if kind == "own":
        return x, y
    if kind == "copies":
        return np.repeat(first[0][None], len(y), axis=0), np.full(len(y), first[1])
    return np.full_like(x, np.nan), np.full(len(y), np.nan)


def replaced(data: Data, record: Record, place: int = 0) -> Data:
    """A neighbouring data set."""
    x, y = data[0].copy(), data[1].copy()
    x[place], y[place] = record
    return x, y


def attack(setting: Setting, silo: int, chosen: Attack, runs: int, done: Done = lambda _: None) -> Samples:
    """Scores of so many runs in each world, all of them clones of one silo."""
    kind = others(setting, silo)
    data = beside(setting, silo, kind, chosen.first)
    worlds = replaced(data, chosen.first), replaced(data, chosen.second)
    if setting.resolved.sums is not None and anonymous(setting.resolved.sums):
        setting = dataclasses.replace(setting, crowd=worlds[0])
    known = Knowledge(setting, silo, chosen.first, chosen.second, kind)
    found: list[np.ndarray] = []
    for clones in _chunks(2 * runs, data[0].size * setting.together):
        coins = [clone % 2 for clone in clones]  # as many in each world
        scores = _run(setting, silo, chosen, [worlds[coin] for coin in coins], clones, known)
        found.append(np.stack([scores, coins]))
        done(len(clones))
    scores, coins_ = np.concatenate(found, axis=1)
    return Samples(scores[coins_ == 0], scores[coins_ == 1])


def _chunks(count: int, size: int) -> Iterator[range]:
    width = max(16, min(2048, _CHUNK // max(1, size)))
    for first in range(0, count, width):
        yield range(first, min(count, first + width))


def _run(
    setting: Setting, silo: int, chosen: Attack, data: list[Data], clones: range, known: Knowledge
) -> np.ndarray:
    tap = Tap()
    streams = [f"worst/{silo}/{clone}" for clone in clones]
    gate = setting.gate(Wiretap(setting.algorithm, tap), [silo] * len(data), data, streams)
    terms = setting.admitted[silo].terms
    scores = Scores(len(data), terms.n, setting.admitted[silo].noise_multiplier)
    by_round = {r: k for k, kind in enumerate(setting.kinds) for r in kind.rounds}
    here = known.of(len(data))
    for r in terms.rounds:
        k = by_round.get(r)
        if k is None:  # of a silo that would have come, had it been there: nobody saw what it is sent
            continue
        gate.answer(r, chosen.broadcasts[k])
        for place, heard in enumerate(tap.take()):
            scores.add(heard.queries[0].batch, heard, here.places(heard, (r, place), (k, place)))
    return scores.ratios()


class Knowledge:
    """What the attacker works out for himself: where answers lie in each world."""

    def __init__(self, setting: Setting, silo: int, first: Record, second: Record, kind: Others) -> None:
        self._setting, self._silo, self._kind = setting, silo, kind
        self._silos = [alone(first), alone(second)]
        if kind == "own":
            x, y = setting.data[silo]
            self._silos.append(replaced((x, y), (np.full(x.shape[1], np.nan), float("nan"))))
        self._known: dict[Key, list[Places]] = {}

    def of(self, runs: int) -> InRuns:
        """For so many runs side by side."""
        return InRuns(self, runs)

    def bench(self, runs: int, shapes: Sequence[QueryShape]) -> Bench:
        """The means of both records alone and, where needed, of the others."""
        return Bench(self._setting, self._silos, runs, shapes)

    def shapes(self) -> dict[tuple[int, int, int], QueryShape]:
        """Of every query of the silo's plan, by (round, ask, query)."""
        return {
            (r, a, q): shape
            for r in self._setting.rounds(self._silo)
            for a, ask in enumerate(self._setting.resolved.trace.plan.rounds[r])
            for q, shape in enumerate(ask.queries)
        }

    def alike(self, key: Key, heard: Heard) -> list[Places]:
        """Where answers lie whose points are the same in all runs; worked out once for equal keys."""
        if key not in self._known:
            bench = self.bench(1, [shape_of(query) for query in heard.queries])
            means = [bench.means(narrowed(query), at) for at, query in enumerate(heard.queries)]
            self._known[key] = self.places(means, heard.queries[0].batch)
        return self._known[key]

    def places(self, means: Sequence[Tensor], batch: Batch) -> list[Places]:
        """Where the answers of an ask lie, from the clipped means (runs, silos, d) of its queries."""
        size = batch.size(self._setting.admitted[self._silo].terms.n)
        found = []
        for mean in means:
            first, second = mean[:, 0].double(), mean[:, 1].double()
            if self._kind == "own":
                found.append(Places(mean[:, 2].double(), first / size, second / size))
            elif self._kind == "copies":
                found.append(Places(first, torch.zeros_like(first), (second - first) / size))
            else:
                found.append(Places(torch.zeros_like(first), first / size, second / size))
        return found


class InRuns:
    """`Knowledge` at the points of so many runs; what is the same in all of them is worked out once."""

    def __init__(self, knowledge: Knowledge, runs: int) -> None:
        self._knowledge, self._runs = knowledge, runs
        self._bench: Bench | None = None
        self._index: dict[tuple[int, int, int], int] = {}

    def places(self, heard: Heard, at: tuple[int, int], key: Key | None = None) -> list[Places]:
        """Where the answers of the ask `at` (round, ask) lie.

        Asks with equal keys are at equal points wherever these do not differ between runs.
        """
        if all(shared(narrowed(query)) for query in heard.queries):
            return self._knowledge.alike(key or at, heard)
        if self._bench is None:
            shapes = self._knowledge.shapes()
            self._bench = self._knowledge.bench(self._runs, list(shapes.values()))
            self._index = {where: place for place, where in enumerate(shapes)}
        means = [
            self._bench.means(narrowed(query), self._index[(*at, place)])
            for place, query in enumerate(heard.queries)
        ]
        return self._knowledge.places(means, heard.queries[0].batch)
