"""The honest server: it runs the algorithm as it is, with all silos, and somebody reads along.

In every run each audited silo tosses a coin of its own for which of two records it has, so that one run
serves all of them; towards one silo the others' coins are part of the other silos' behaviour, which may be
any. Two readers: one of the silo's whole transcript, who computes the likelihood ratio (`score`) at the
points that the run came to, and one who is given the final model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.bench import Bench, Record, alone, narrowed, shape_of
from fedsim.attacks.gates import Answering
from fedsim.attacks.score import Scores
from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Broadcast, Federated, Setting, drive
from fedsim.attacks.wiretap import Heard, Tap, Wiretap
from fedsim.attacks.worst import Knowledge, Samples, replaced
from fedsim.common.seeds import digest128

_WIDTH = 2_000_000
_PILOT_RUNS = 32
_ROUNDS, _RECORDS = 8, 60
"""Of the pilot: how many asks and candidates a silo's pair of records is chosen by."""

Pair = tuple[Record, Record]
Hear = Callable[[int, int, list[Heard]], None]
"""(silo, round, asks)."""


@dataclass(frozen=True)
class Read:
    """What was read: for each audited silo the scores of its transcripts, and of the final models."""

    transcript: dict[int, Samples]
    model: dict[int, Samples]


class _Listening(Federated):
    """A way to the silos on which every answer is overheard."""

    def __init__(self, gates: Sequence[Answering], taps: Sequence[Tap], hear: Hear) -> None:
        super().__init__(gates)
        self._taps, self._hear = taps, hear

    def one(self, silo: int, round_index: int, broadcast: Broadcast) -> dict[str, Tensor]:
        """The silo's messages, as they are."""
        reply = super().one(silo, round_index, broadcast)
        self._hear(silo, round_index, self._taps[silo].take())
        return reply


def _runs(
    setting: Setting,
    pairs: Mapping[int, Pair],
    coins: Mapping[int, np.ndarray],
    names: Sequence[str],
    hear: Hear = lambda silo, round_index, heard: None,
) -> Tensor:
    """Final models (runs, d) of runs side by side; `coins` say which record each silo has in each."""
    gates, taps = [], []
    for silo, data in enumerate(setting.data):
        worlds = [replaced(data, record) for record in pairs[silo]] if silo in pairs else [data]
        own = [worlds[coin] for coin in coins[silo]] if silo in pairs else worlds * len(names)
        taps.append(Tap())
        streams = [f"{name}/{silo}" for name in names]
        wiretap = Wiretap(setting.algorithm, taps[-1])
        gates.append(setting.gate(wiretap, [silo] * len(names), own, streams, copies=1))
    models = drive(setting, _Listening(gates, taps, hear))
    return models.expand(len(names), -1)


def choose(setting: Setting, attacks: Mapping[int, Attack]) -> dict[int, Pair]:
    """For each silo the two records whose terms are furthest apart along a few honest runs."""
    runs = 4
    chosen = _spread(setting, _ROUNDS)
    distances: dict[int, Tensor] = {}

    def hear(silo: int, round_index: int, heard: list[Heard]) -> None:
        if silo not in attacks or round_index not in chosen:
            return
        tried = attacks[silo].records[:_RECORDS]
        shapes = [shape_of(query) for each in heard[-2:] for query in each.queries]
        bench = Bench(setting, [alone(record) for record in tried], runs, shapes)
        for place, query in enumerate(query for each in heard[-2:] for query in each.queries):
            terms = bench.means(narrowed(query), place).double()  # (runs, records, d)
            scale = 2 * torch.as_tensor(query.clip).double().reshape(-1, 1, 1) * query.noise_ratio
            square = torch.cdist(terms, terms).square() / scale.square().clamp_min(1e-300)
            distances[silo] = distances.get(silo, torch.zeros(())) + square.mean(0)

    _runs(setting, {}, {}, [f"choice/{k}" for k in range(runs)], hear)
    pairs = {}
    for silo, square in distances.items():
        a, b = divmod(int(square.argmax()), len(square))
        pairs[silo] = attacks[silo].records[a], attacks[silo].records[b]
    return pairs


def _spread(setting: Setting, count: int) -> set[int]:
    rounds = len(setting.resolved.trace.plan.rounds)
    return set(np.linspace(0, rounds - 1, min(count, rounds)).round().astype(int).tolist())


def read(
    setting: Setting, pairs: Mapping[int, Pair], runs: int, done: Callable[[int], None] = lambda _: None
) -> Read:
    """Scores of so many runs in each world, or one less."""
    directions = _directions(setting, pairs)
    scores: dict[int, list[np.ndarray]] = {silo: [] for silo in pairs}
    tosses: dict[int, list[np.ndarray]] = {silo: [] for silo in pairs}
    models = []
    size = sum(data[0].size for data in setting.data)
    width = max(16, min(512, _WIDTH // size))
    for first in range(0, 2 * runs, width):
        names = [f"honest/{run}" for run in range(first, min(2 * runs, first + width))]
        coins = {silo: np.array([_coin(setting, name, silo) for name in names]) for silo in pairs}
        heard, hear = _reading(setting, pairs, len(names))
        models.append(_runs(setting, pairs, coins, names, hear))
        for silo in pairs:
            scores[silo].append(heard[silo].ratios())
            tosses[silo].append(coins[silo])
        done(len(names))
    final = torch.cat(models).double().numpy()
    coins = {silo: np.concatenate(parts) for silo, parts in tosses.items()}
    return Read(
        {silo: _split(np.concatenate(scores[silo]), coins[silo]) for silo in pairs},
        {silo: _by_model(final, coins[silo], directions[silo]) for silo in pairs},
    )


def _coin(setting: Setting, name: str, silo: int) -> int:
    return digest128("audit coin", setting.resolved.scenario.seed, name, silo) % 2


def _split(scores: np.ndarray, coins: np.ndarray) -> Samples:
    return Samples(scores[coins == 0], scores[coins == 1])


def _reading(setting: Setting, pairs: Mapping[int, Pair], runs: int) -> tuple[dict[int, Scores], Hear]:
    """Scores of audited silos' transcripts, and what adds to them as runs side by side are heard."""
    admitted = {silo: setting.admitted[silo] for silo in pairs}
    known = {silo: Knowledge(setting, silo, *pair, "own").of(runs) for silo, pair in pairs.items()}
    scores = {silo: Scores(runs, own.terms.n, own.noise_multiplier) for silo, own in admitted.items()}

    def hear(silo: int, round_index: int, heard: list[Heard]) -> None:
        for ask, each in enumerate(heard if silo in pairs else ()):
            places = known[silo].places(each, (round_index, ask))
            scores[silo].add(each.queries[0].batch, each, places)

    return scores, hear


def _directions(setting: Setting, pairs: Mapping[int, Pair]) -> dict[int, np.ndarray]:
    """How a silo's other record moves the final model on average, noise and batches being equal; (d,).

    From runs of their own, in pairs: the difference of two models with the same noise has little variance.
    """
    names = [f"pilot/{k}" for k in range(_PILOT_RUNS)]
    none = np.zeros(len(names), dtype=int)
    base = dict.fromkeys(pairs, none)
    before = _runs(setting, pairs, base, names)
    return {
        silo: (_runs(setting, pairs, base | {silo: none + 1}, names) - before).double().mean(0).numpy()
        for silo in pairs
    }


def _by_model(final: np.ndarray, coins: np.ndarray, direction: np.ndarray) -> Samples:
    """Scores of final models: their projection on `direction`, weighted by the noise that hides it.

    Weights and threshold come from the first fifth of the runs, which are not scored.
    """
    held = len(final) // 5
    centre = final[:held].mean(0)
    weights = direction
    if held > 4 * len(direction):
        covariance = np.cov(final[:held].T).reshape(len(direction), -1)
        ridge = 1e-9 * np.trace(covariance) / len(direction) * np.eye(len(direction))
        weights = np.linalg.solve(covariance + ridge, direction)
    scores = (final[held:] - centre) @ weights
    return _split(scores, coins[held:])
