"""An attacker who is told everything that the server saw, and guesses whose message is whose.

Exact under the null: in every round the release's order is uniform and independent of all else, so that
guesses of one slot's owner, by whatever was learnt on other rounds, are right with probability 1 / N each.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from support.rosters import Parties

from fedsim.secagg.reports import Form, open_inner
from fedsim.secagg.shuffling import Release, Request
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.store import MemoryStore

SILOS = 4
EXTREMES = [0.0, -0.0, 5e-324, 1.0, -1.0, 1e308, -1e308, float("inf"), float("nan")]


@dataclass(frozen=True)
class Seen:
    """One round: for each slot of the release and silo what the server has, and whose the slot is.

    Attributes:
        features: (slots, silos, features).
        owner: of each slot, which no server knows.
    """

    features: np.ndarray
    owner: np.ndarray


Asks = Callable[[Shuffler, Request, Parties], Release]


def through_frames(shuffler: Shuffler, request: Request, parties: Parties) -> Release:
    """As a server asks."""
    identity = bytes.fromhex(parties.shuffler_identity.public)
    return Release.read(shuffler.shuffle(request), request, identity)


def rounds(
    kind: type[Shuffler], form: Form, count: int, ask: Asks = through_frames, seed: int = 0
) -> list[Seen]:
    """So many rounds, of contents that are exchangeable across silos and arrive in random order."""
    rng, parties = np.random.default_rng(seed), Parties(SILOS)
    keys = Keys(parties.shuffler, parties.shuffler_identity)
    shuffler = kind([parties.roster], keys, MemoryStore())
    return [_round(shuffler, parties, form, index, ask, rng) for index in range(count)]


def _round(
    shuffler: Shuffler, parties: Parties, form: Form, index: int, ask: Asks, rng: np.random.Generator
) -> Seen:
    context = parties.context(index, form=form)
    numbers = _contents(form, rng)
    arrived = rng.permutation(SILOS)  # report of silo arrived[k] came k-th
    reports = [parties.report(int(silo), numbers[silo], context) for silo in arrived]
    start = time.perf_counter()
    request = Request(context, tuple(reports))
    release = ask(shuffler, request, parties)
    took = time.perf_counter() - start
    contents = [open_inner(inner[: form.inner_bytes], context, parties.server) for inner in release.inner]
    place = {int(silo): k for k, silo in enumerate(arrived)}
    table = [
        [
            _features(slot, silo, place[silo], inner, content, reports[place[silo]], took)
            for silo in range(SILOS)
        ]
        for slot, (inner, content) in enumerate(zip(release.inner, contents, strict=True))
    ]
    own = [row.astype("<f8").tobytes() for row in numbers]
    return Seen(np.array(table), np.array([own.index(content) for content in contents]))


def _contents(form: Form, rng: np.random.Generator) -> np.ndarray:
    """Messages of every silo, independent and of one law; some are extreme, and no two are equal."""
    shape = (SILOS, len(form.scales), form.dimension)
    numbers = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, (SILOS, 1, 1))
    rare = rng.random(shape) < 0.3
    numbers[rare] = rng.choice(EXTREMES, rare.sum())
    numbers[..., 0] = rng.normal(size=shape[:2])
    return numbers


def _features(
    slot: int, silo: int, place: int, inner: bytes, content: bytes, report: bytes, took: float
) -> list[float]:
    values = np.nan_to_num(np.frombuffer(content, "<f8"), posinf=1e300, neginf=-1e300)
    size = np.sign(values) * np.log1p(np.abs(values))
    same = np.frombuffer(inner[:64], np.uint8) == np.frombuffer(report[:64], np.uint8)
    ends = np.frombuffer(inner[-64:], np.uint8) == np.frombuffer(report[-64:], np.uint8)
    return [
        slot,
        silo,
        place,
        float(slot == silo),
        float(slot == place),
        len(inner),
        len(inner) - 8 * silo,
        float(inner in report),
        float(inner[:16] in report),
        float(same.sum()),
        float(ends.sum()),
        float(inner[0] == report[0]),
        *size[:4],
        size.max(),
        size.min(),
        size.max() * silo,
        took,
    ]


def hits(seen: list[Seen]) -> tuple[int, int]:
    """How often the owner of the first slot is guessed in the later half, by what the first half taught."""
    half = len(seen) // 2
    forest = RandomForestClassifier(200, min_samples_leaf=5, random_state=0)
    rows = np.concatenate([each.features.reshape(SILOS * SILOS, -1) for each in seen[:half]])
    owned = [each.owner[:, None] == np.arange(SILOS)[None] for each in seen[:half]]
    forest.fit(rows, np.concatenate([each.ravel() for each in owned]))
    guesses = [forest.predict_proba(each.features[0])[:, 1].argmax() for each in seen[half:]]
    return sum(int(guess == each.owner[0]) for guess, each in zip(guesses, seen[half:], strict=True)), len(
        guesses
    )


def threshold(guesses: int, alarm: float) -> int:
    """More hits than this come by chance with a probability below `alarm`."""
    return int(stats.binom.isf(alarm, guesses, 1 / SILOS))
