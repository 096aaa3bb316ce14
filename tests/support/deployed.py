"""Deployed silos without sockets: records and silo.yaml of a scenario, and a server that sends frames."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from fedsim.data.federation import Federation, load
from fedsim.deployment.topology import write_records
from fedsim.protocol.copies import digest
from fedsim.protocol.links import Answered
from fedsim.protocol.unit import RECORD
from fedsim.report.outcome import Results, TrialResult
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import execute
from fedsim.wire.frames import UNSIGNED, Frame, decode, encode, opened, sealed
from silos.front.config import Config, load_config
from silos.front.enrolment import enrol
from silos.front.silo import Silo

SCENARIO: dict[str, Any] = {
    "name": "deployed",
    "data": {"name": "synthetic", "rows": 120, "features": 4},
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 6, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-6},
    "runtime": "inprocess",
}
SVRG: dict[str, Any] = {"name": "prox_svrg", "epochs": 2, "inner_steps": 2, "step_size": 0.5}
SVRG |= {"clip_norm": 1.0, "difference_clip": 1.0}
POLICY: dict[str, Any] = {
    "lifetime": {
        "epsilon": 8.0,
        "delta": 1e-4,
        "expires": "2999-12-31",
        "sampled": {"epsilon": 4.0, "delta": 5e-5},
    },
    "per_run": {"epsilon": 4.0, "delta": 1e-5},
}


def resolved_of(**changes: Any) -> Resolved:
    """SCENARIO with whole sections replaced."""
    return resolve(parse({**SCENARIO, **changes}))


def simulated(resolved: Resolved) -> TrialResult:
    """The first trial, in simulation."""
    results = Results()
    execute(resolved, results, lambda measurement: None)
    return results.trials[0]


def assert_statements(found: TrialResult, expected: TrialResult) -> None:
    """Each silo has admitted and spent the same."""
    for mine, theirs in zip(found.statements, expected.statements, strict=True):
        assert mine.admitted.noise_multiplier == theirs.admitted.noise_multiplier
        assert mine.admitted.epsilon_guaranteed == theirs.admitted.epsilon_guaranteed
        assert (mine.epsilon_spent, mine.rounds) == (theirs.epsilon_spent, theirs.rounds)


def federation_of(resolved: Resolved) -> Federation:
    scenario = resolved.scenario
    return load(scenario.data, scenario.partition, scenario.seed, 0, scenario.privacy.unit)


def silo_file(folder: Path, name: str, records: Mapping[str, Any], **more: Any) -> Path:
    """`folder`/silo.yaml of a silo with these records and further fields."""
    tree = {"name": name, "records": dict(records), "state": "state", "listen": {"socket": "silo.sock"}}
    (folder / "silo.yaml").write_text(yaml.safe_dump(tree | {"policy": POLICY} | more))
    return folder / "silo.yaml"


def write_silos(
    folder: Path,
    resolved: Resolved,
    *,
    seeded: bool = False,
    policy: Mapping[str, Any] | None = None,
    rosters: Sequence[str] = (),
    holdout: float | None = None,
    public: Sequence[str] = (),
) -> list[Path]:
    """A folder a silo with its training records and silo.yaml; the files' paths, in canonical order."""
    federation, paths = federation_of(resolved), []
    for silo in federation.silos:
        own = folder / silo.name
        own.mkdir(parents=True)
        write_records(own / "records.npz", silo.train, federation.groups)
        records: dict[str, Any] = {"name": "npz", "path": "records.npz", "intercept": False}
        if silo.train.groups is not None:
            records["groups"] = list(federation.groups)
        if federation.num_classes:
            records["classes"] = federation.num_classes
        more: dict[str, Any] = {"rosters": list(rosters), "holdout": holdout}
        if silo.name in public:
            more["public_silo"] = True
        if resolved.scenario.privacy.unit != RECORD:
            more["unit"] = {"name": "person", "relation": resolved.scenario.privacy.unit.relation}
        if seeded:
            run = run_digest(resolved, federation.digest, "private")
            more["insecure_simulation"] = {"seed": resolved.scenario.seed, "trial": 0, "run": run}
        paths.append(silo_file(own, silo.name, records, policy={**POLICY, **(policy or {})}, **more))
    return paths


def enrolled(paths: Sequence[Path]) -> list[Config]:
    configs = [load_config(path) for path in paths]
    for config in configs:
        enrol(config)
    return configs


def offer_of(resolved: Resolved, silo: str, **changes: Any) -> dict[str, Any]:
    """The head of an offer to one silo."""
    scenario, i = resolved.scenario, resolved.names.index(silo)
    noise, outline = resolved.noise_multipliers, resolved.outline
    offer = {
        "session": digest({silo: torch.zeros(1)}).hex(),
        "study": {"name": "deployed", "purpose": ""},
        "silo": silo,
        "algorithm": json.loads(scenario.algorithm.model_dump_json()),
        "problem": json.loads(scenario.problem.model_dump_json()),
        "shape": {
            "sizes": outline.sizes,
            "num_features": outline.num_features,
            "num_classes": outline.num_classes,
            **({"num_groups": len(outline.groups)} if outline.groups else {}),
        },
        "weights": list(resolved.weights),
        "dtype": scenario.runtime.dtype,
        "seed": scenario.seed,
        "rounds": None,
        "epsilon": resolved.epsilons[i],
        "delta": resolved.deltas[i],
        "noise_multiplier": None if noise is None else noise[i],
        "head": "",
    }
    if scenario.privacy.unit != RECORD:
        offer["unit"] = scenario.privacy.model_dump(mode="json")["unit"]
    return {**offer, **changes}


@dataclass
class Caller:
    """A server's side of one silo: it remembers heads, and every byte that was sent."""

    silo: Silo
    head: str = ""
    sent: list[bytes] = field(default_factory=list)
    mark: dict[str, Any] | None = None

    def raw(self, kind: str, arrays: Mapping[str, Tensor] | None = None, **head: Any) -> bytes:
        self.sent.append(self.silo.answer(sealed(encode(Frame(kind, head, arrays or {})))))
        return self.sent[-1]

    def send(self, kind: str, arrays: Mapping[str, Tensor] | None = None, **head: Any) -> Frame:
        body, signature = opened(self.raw(kind, arrays, **{"head": self.head, **head}))
        assert signature != UNSIGNED
        frame = decode(body)
        self.head = frame.head.get("head", self.head)
        return frame

    def refused(self, kind: str, arrays: Mapping[str, Tensor] | None = None, **head: Any) -> str:
        frame = self.send(kind, arrays, **head)
        assert frame.kind == "refusal", frame
        return str(frame.head["reason"])

    def admitted(self, offer: Mapping[str, Any]) -> Mapping[str, Any]:
        frame = self.send("offer", **{**offer, "head": self.head})
        assert frame.kind == "admission", frame.head
        return frame.head

    def asked(self, run: str, round_index: int, **broadcast: Tensor) -> Mapping[str, Tensor]:
        frame = self.send("ask", broadcast, run=run, round=round_index, mark=self.mark)
        assert frame.kind == "reply", frame.head
        assert frame.head["broadcast"] == digest(broadcast).hex()
        return frame.arrays

    def closed(self, run: str) -> Mapping[str, Any]:
        frame = self.send("close", run=run)
        assert frame.kind == "closed", frame.head
        return frame.head


@contextmanager
def calling(config: Config, **more: Any) -> Iterator[Caller]:
    """The server's side of an enrolled silo, which is open within the block."""
    with closing(Silo.open(config)) as silo:
        yield Caller(silo, **more)


@dataclass
class SilosLink:
    """The server loop's way to silos of one run."""

    callers: Sequence[Caller]
    runs: Sequence[str]

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        replies = [self.callers[m].asked(self.runs[m], round_index, **broadcast) for m in members]
        rows = {name: torch.stack([reply[name] for reply in replies]) for name in replies[0]}
        return Answered(members, rows)
