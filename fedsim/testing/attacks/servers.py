"""Runs of a malicious and of an honest-but-curious server in two worlds, and their scores.

The malicious server sends in every round the broadcast at which the two worlds' records differ most. It hears
each answer of the gate by itself, which is what the plan is priced for; where a silo sends something made of
several answers (local SGD) that is more than it sends. The claim holds for every data set, so the attacker
chooses the other records too where batches are sampled: copies of the first record, or under Poisson sampling
records that count as zero, so that nothing but the noise hides the one that differs.

The honest-but-curious server runs the algorithm as it is, with all silos, and reads along. In every run each
audited silo tosses a coin for which of two records it has, so that one run serves all of them; for one silo
the others' coins are part of the other silos' behaviour, which may be any. Two readers: one of the silo's
whole transcript, which computes the likelihood ratio (`likelihood`) at the points of the run, and one that
gets the final model alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.common.seeds import digest128
from fedsim.protocol.rows import Rows
from fedsim.testing.attacks.canaries import replaced
from fedsim.testing.attacks.cohorts import Heard, Tap
from fedsim.testing.attacks.likelihood import ClippedMeans, InRuns, Knowledge, Scores, narrowed
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.setting import Federated, Setting, drive, others

_CHUNK = 2_000_000  # numbers that the records of the runs which go together take, about: 16 MB
Done = Callable[[int], None]


class Samples(NamedTuple):
    """Scores of runs in the two worlds; larger in the second."""

    first: np.ndarray
    second: np.ndarray


def malicious(setting: Setting, silo: int, chosen: Attack, runs: int, done: Done = lambda _: None) -> Samples:
    """Scores of so many runs in each world, all of them clones of one silo."""
    worlds = chosen.worlds(setting, silo)
    if setting.resolved.sums is not None and setting.resolved.sums.mechanism.single_records:
        setting = dataclasses.replace(setting, crowd=worlds[0])
    known = Knowledge(setting, silo, chosen.first, chosen.second, others(setting, silo))
    found: list[np.ndarray] = []
    for clones in _chunks(2 * runs, worlds[0][0].size * setting.together):
        coins = [clone % 2 for clone in clones]  # as many in each world
        scores = _run(setting, silo, chosen, [worlds[coin] for coin in coins], clones, known)
        found.append(np.stack([scores, coins]))
        done(len(clones))
    return _split(*np.concatenate(found, axis=1))


def _chunks(count: int, size: int, most: int = 2048) -> Iterator[range]:
    width = max(16, min(most, _CHUNK // max(1, size)))
    for first in range(0, count, width):
        yield range(first, min(count, first + width))


def _run(
    setting: Setting, silo: int, chosen: Attack, data: list[Rows], clones: range, known: Knowledge
) -> np.ndarray:
    tap = Tap()
    gate = setting.gate(tap, [silo] * len(data), data, [f"worst/{silo}/{clone}" for clone in clones])
    terms, scores = setting.admitted[silo].terms, _scores(setting, silo, len(data))
    here = InRuns(known, len(data))
    for r in terms.rounds:
        if (k := setting.kind_of.get(r)) is None:  # no honest run has this round, so its broadcast is unknown
            continue
        gate.answer(r, chosen.broadcasts[k])
        for place, heard in enumerate(tap.take()):
            scores.add(heard.queries[0].batch, heard, here.places(heard, (r, place), (k, place)))
    return scores.ratios()


def _scores(setting: Setting, silo: int, runs: int) -> Scores:
    admitted = setting.admitted[silo]
    return Scores(runs, admitted.terms.n, admitted.noise_multiplier, setting.scale, setting.swap(silo))


_PILOT_RUNS = 32
_ROUNDS, _CANARIES = 8, 60  # rounds and candidates by which a silo's pair of units is chosen
Pair = tuple[Rows, Rows]
Hear = Callable[[int, int, list[Heard]], None]  # (silo, round, asks)


def _runs(
    setting: Setting,
    pairs: Mapping[int, Pair],
    coins: Mapping[int, np.ndarray],
    names: Sequence[str],
    hear: Hear = lambda silo, round_index, heard: None,
) -> Tensor:
    """Final models (runs, d) of runs side by side; `coins` say which unit each silo has in each."""
    gates, taps = [], []
    for silo, data in enumerate(setting.data):
        place = setting.place(silo)
        worlds = [replaced(data, canary, place) for canary in pairs[silo]] if silo in pairs else [data]
        own = [worlds[coin] for coin in coins[silo]] if silo in pairs else worlds * len(names)
        taps.append(Tap())
        streams = [f"{name}/{silo}" for name in names]
        gates.append(setting.gate(taps[-1], [silo] * len(names), own, streams, copies=1))
    models = drive(setting, Federated(gates, lambda silo, r: hear(silo, r, taps[silo].take())))
    return models.expand(len(names), -1)


def choose_pairs(setting: Setting, attacks: Mapping[int, Attack]) -> dict[int, Pair]:
    """For each silo the two units whose terms are furthest apart along a few honest runs."""
    runs, rounds = 4, len(setting.resolved.trace.plan.rounds)
    chosen = set(np.linspace(0, rounds - 1, min(_ROUNDS, rounds)).round().astype(int).tolist())
    distances: dict[int, Tensor] = {}

    def hear(silo: int, round_index: int, heard: list[Heard]) -> None:
        if silo not in attacks or round_index not in chosen:
            return
        tried = attacks[silo].canaries[:_CANARIES]
        shapes = [query.shape for each in heard[-2:] for query in each.queries]
        clipped = ClippedMeans(setting, tried, runs, shapes)
        for place, query in enumerate(query for each in heard[-2:] for query in each.queries):
            terms = clipped.means(narrowed(query), place).double()  # (runs, records, d)
            scale = setting.scale(query).reshape(-1, 1, 1) * query.noise_ratio
            square = torch.cdist(terms, terms).square() / scale.square().clamp_min(1e-300)
            distances[silo] = distances.get(silo, torch.zeros(())) + square.mean(0)

    _runs(setting, {}, {}, [f"choice/{k}" for k in range(runs)], hear)
    pairs = {}
    for silo, square in distances.items():
        tried = attacks[silo].canaries[: len(square)]
        square[torch.from_numpy(~setting.related(tried))] = -1.0
        a, b = divmod(int(square.argmax()), len(square))
        pairs[silo] = tried[a], tried[b]
    return pairs


def honest_but_curious(
    setting: Setting, pairs: Mapping[int, Pair], runs: int, done: Callable[[int], None] = lambda _: None
) -> dict[int, dict[str, Samples]]:
    """By audited silo, scores of transcripts and final models of so many runs in each world, or one less."""
    directions = _directions(setting, pairs)
    scores: dict[int, list[np.ndarray]] = {silo: [] for silo in pairs}
    models, seed, names = [], setting.resolved.scenario.seed, [f"honest/{run}" for run in range(2 * runs)]
    coins = {i: np.array([digest128("audit coin", seed, name, i) % 2 for name in names]) for i in pairs}
    for chunk in _chunks(len(names), sum(data[0].size for data in setting.data), 512):
        some = slice(chunk.start, chunk.stop)
        heard, hear = _reading(setting, pairs, len(chunk))
        own = {silo: tossed[some] for silo, tossed in coins.items()}
        models.append(_runs(setting, pairs, own, names[some], hear))
        for silo in pairs:
            scores[silo].append(heard[silo].ratios())
        done(len(chunk))
    final = torch.cat(models).double().numpy()
    return {
        silo: {
            "honest_server": _split(np.concatenate(scores[silo]), coins[silo]),
            "model": _by_model(final, coins[silo], directions[silo]),
        }
        for silo in pairs
    }


def _split(scores: np.ndarray, coins: np.ndarray) -> Samples:
    return Samples(scores[coins == 0], scores[coins == 1])


def _reading(setting: Setting, pairs: Mapping[int, Pair], runs: int) -> tuple[dict[int, Scores], Hear]:
    """Scores of audited silos' transcripts, and what adds to them as runs side by side are heard."""
    known = {silo: InRuns(Knowledge(setting, silo, *pair, "own"), runs) for silo, pair in pairs.items()}
    scores = {silo: _scores(setting, silo, runs) for silo in pairs}

    def hear(silo: int, round_index: int, heard: list[Heard]) -> None:
        for ask, each in enumerate(heard if silo in pairs else ()):
            scores[silo].add(each.queries[0].batch, each, known[silo].places(each, (round_index, ask)))

    return scores, hear


def _directions(setting: Setting, pairs: Mapping[int, Pair]) -> dict[int, np.ndarray]:
    """The mean movement of the final model by a silo's other record, at equal noise and batches, (d,).

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
    return _split((final[held:] - centre) @ weights, coins[held:])
