"""Deployed silos of sums: a roster that all parties have pinned, and a shuffler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from support.channels import Answer, Enrolled, Fault, InMemory, enrolled_federation
from support.deployed import SCENARIO

from fedsim.common.head_file import Head
from fedsim.deployment.federation_file import Federation, parse_federation
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve
from fedsim.secagg.envelopes import KEY_FILE, EnvelopeKey
from fedsim.secagg.roster import Roster, load_roster
from fedsim.secagg.shuffling import marked
from server.federation import NO_FRAMES
from server.secure_aggregation import SHUFFLER
from shuffler.config import load_config
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.service import FrameHandler, enrol
from shuffler.store import FileStore

PRIVACY = {"mechanism": "summed_gaussian", "honest_fraction": 1.0, "epsilon": 2.0, "delta": 1e-6}


def pooled_scenario(**changes: Any) -> Scenario:
    """SCENARIO with secure aggregation; sections are replaced, and fields of `privacy` set."""
    privacy = {**PRIVACY, **changes.pop("privacy", {})}
    return parse({**SCENARIO, "privacy": {k: v for k, v in privacy.items() if v is not None}, **changes})


@dataclass
class PooledFederation:
    """Enrolled silos, a shuffler, and the roster of both.

    Attributes:
        enrolled: the silos; its `federation` has no shuffler.
        federation: as the server knows it.
        roster: in `folder / "roster.yaml"`.
    """

    folder: Path
    enrolled: Enrolled
    federation: Federation
    roster: Roster

    @property
    def shuffler_file(self) -> Path:
        return self.folder / "shuffler" / "shuffler.yaml"

    @contextmanager
    def silos(self, seeded: bool) -> Iterator[InMemory]:
        """Their silos in this process."""
        with self.enrolled.opened(seeded) as made:
            yield made

    @contextmanager
    def shuffler(self, start: str = "") -> Iterator[Answer]:
        """The shuffler in this process: a frame in, a frame out; what it noted outlives it. With a `start` it
        takes what was sealed for that one."""
        config = load_config(self.shuffler_file)
        keys = Keys.load(config.state)
        store = FileStore.open(config.notes, keys.identity.public)
        store.start = start or store.start
        try:
            yield FrameHandler(Shuffler(config.load_rosters(), keys, store)).answer
        finally:
            store.close()

    def mark(self, number: int = 2, head: str = "02" * 32, start: str = "01" * 32) -> dict[str, Any]:
        """A mark that its shuffler has signed."""
        keys = Keys.load(load_config(self.shuffler_file).state)
        return marked(keys.identity, Head(number, bytes.fromhex(head)), start).model_dump()

    @contextmanager
    def channel(self, fault: Fault | None = None) -> Iterator[ToShuffler]:
        """The way to a shuffler of this process."""
        with self.shuffler() as answer:
            yield ToShuffler(answer, fault)


@dataclass
class ToShuffler:
    """A `Channel`; `sent` has every frame, and `fault` may stand between."""

    answer: Answer
    fault: Fault | None = None
    sent: list[bytes] = field(default_factory=list)

    def exchange(
        self, frames: Mapping[str, bytes], deadline: float, knocks: Mapping[str, bytes] = NO_FRAMES
    ) -> dict[str, bytes]:
        self.sent.append(frames[SHUFFLER])
        reply = self.fault(self.sent[-1], self.answer) if self.fault else self.answer(self.sent[-1])
        return {} if reply is None else {SHUFFLER: reply}


def pooled_federation(
    folder: Path,
    scenario: Scenario,
    seeded: bool = True,
    policy: Mapping[str, Any] | None = None,
    terms: Mapping[str, Any] | None = None,
    **more: Any,
) -> PooledFederation:
    """New silos and a shuffler in `folder`.

    Args:
        terms: fields of the roster.
        more: fields of federation.yaml.
    """
    resolved = resolve(scenario)
    enrolled = enrolled_federation(folder, resolved, seeded, policy, rosters=["../roster.yaml"], **more)
    shuffler = folder / "shuffler"
    shuffler.mkdir()
    told = {"state": "state", "listen": {"socket": "s.sock"}, "rosters": ["../roster.yaml"]}
    (shuffler / "shuffler.yaml").write_text(yaml.safe_dump(told))
    server = folder / "server"
    server.mkdir()
    privacy = scenario.privacy
    tree = {
        "federation": scenario.name,
        "silos": {name: key.hex() for name, key in enrolled.federation.identities.items()},
        "server": EnvelopeKey.create(server).public,
        "shuffler": enrol(load_config(shuffler / "shuffler.yaml")),
        "min_silos": privacy.min_silos or len(resolved.names),
        "honest_fraction": privacy.honest_fraction or 1.0,
        "noise_by": privacy.noise_by,
        **(terms or {}),
    }
    (folder / "roster.yaml").write_text(yaml.safe_dump(tree))
    known = enrolled.federation.model_dump(mode="json", exclude_none=True)
    entry = {
        "roster": str(folder / "roster.yaml"),
        "key": str(server / KEY_FILE),
        "socket": str(shuffler / "s.sock"),
    }
    federation = parse_federation({**known, "shuffler": entry})
    return PooledFederation(folder, enrolled, federation, load_roster(folder / "roster.yaml"))
