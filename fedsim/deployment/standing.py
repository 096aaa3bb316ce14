"""How a deployment stands, as its server knows: SuperLink, nodes, runs, what of lifetimes is public."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from pydantic import AliasPath, BaseModel, Field, NonNegativeFloat

from fedsim.common.errors import InputError
from fedsim.deployment.certs import notices
from fedsim.deployment.federation_file import Federation, load_federation
from fedsim.deployment.flower.control import Control, Submitted
from fedsim.deployment.flower.submit import Job, Reader
from fedsim.deployment.node_keys import node_keys
from fedsim.deployment.running import running
from fedsim.deployment.topology import Topology, made
from fedsim.protocol.plan import Part
from fedsim.report.run_directory import RECEIPTS

DEFAULT_SUPERLINK = "127.0.0.1:8000"


@dataclass(frozen=True)
class Place:
    """A federation, and where its SuperLink is to be."""

    file: Path  # federation.yaml
    federation: Federation
    address: str | None  # HOST:PORT; None where nothing of a `fedsim up` runs
    topology: Topology | None  # of a directory of `fedsim up`

    @classmethod
    def of(cls, path: Path, superlink: str | None = None) -> Place:
        """By a directory of `fedsim up`, or a federation.yaml, and the SuperLink's address where that is
        another; InputError if it is neither.
        """
        if path.is_dir():
            topology, there = made(path.absolute(), "FEDERATION"), running(path)
            address = superlink or (there.superlink if there else None)
            return cls(topology.federation, load_federation(topology.federation), address, topology)
        federation = load_federation(path)
        return cls(path, federation, superlink or federation.superlink or DEFAULT_SUPERLINK, None)

    def control(self) -> Control:
        """A line to the SuperLink; InputError if nothing runs."""
        if self.address is None:
            raise InputError("superlink", None, "nothing of `fedsim up` runs there")
        return Control(self.address, self.federation.authority)

    def job(self, run: Submitted) -> Job | None:
        """What a run of this federation's file is to do; None if it is another's."""
        job = job_of(run)
        return job if job and job.federation.resolve() == self.file.resolve() else None


def job_of(run: Submitted) -> Job | None:
    """What a run is to do; None if it was started by another program than fedsim."""
    with suppress(OSError, ValueError):
        return Job.of(run.settings)
    return None


class _Cost(BaseModel, allow_inf_nan=False):
    mu_sq: NonNegativeFloat
    epsilon: NonNegativeFloat
    delta: NonNegativeFloat
    distance: NonNegativeFloat


class _Receipt(BaseModel):
    """What is needed of a receipt, which is a silo's word."""

    run: str
    closed: int
    public_key: str
    charged: _Cost
    part: Part = "training"
    caps: _Cost = Field(validation_alias=AliasPath("lifetime", "total"))


def lifetimes(folders: Iterable[Path], names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """By silo, what receipts in run directories say of its lifetime account; None where there is none of it.

    `charged` is by their `runs`, of its two parts the larger; other servers may have charged more to it.
    """
    places = list(dict.fromkeys(folders))
    return {
        name: _lifetime([each for place in places for each in (place / RECEIPTS).glob(f"**/{name}.json")])
        for name in names
    }


def _lifetime(files: Iterable[Path]) -> dict[str, Any] | None:
    receipts: dict[str, _Receipt] = {}
    for file in files:
        with suppress(OSError, ValueError):  # none of this run, or none
            said = _Receipt.model_validate_json(file.read_bytes())
            receipts[said.run] = said
    if not receipts:
        return None
    newest = max(receipts.values(), key=lambda each: each.closed)
    own = [each for each in receipts.values() if each.public_key == newest.public_key]
    parts = [[dict(each.charged) for each in own if each.part == part] for part in get_args(Part)]
    caps = dict(newest.caps)
    charged = {name: max(sum(each[name] for each in part) for part in parts) for name in caps}
    return {"caps": caps, "charged": charged, "runs": len(own)}


def standing(place: Place, folders: Iterable[Path]) -> dict[str, Any]:
    """All of it as plain values; receipts are of the directories `folders` and of the SuperLink's runs."""
    keys, seen, runs, error = node_keys(place.federation), {}, [], None
    try:
        with place.control() as control:
            seen, runs = control.seen(), control.runs()
    except InputError as refused:
        error = str(refused)
    jobs = [job for run in runs if (job := job_of(run))]
    own = [] if place.topology is None else [place.topology.run]
    left = lifetimes([*folders, *own, *(job.out for job in jobs)], keys)
    return {
        "superlink": {"address": place.address, "answers": error is None, "reason": error},
        "runs": [run_tree(run) for run in runs],
        "notices": notices(place.federation.authority),
        "silos": {
            name: {
                "node": (node := seen.get(key)) and node.status,
                "contact": node and node.contact and node.contact.isoformat(timespec="seconds"),
                "lifetime": left[name],
            }
            for name, key in keys.items()
        },
    }


def run_tree(run: Submitted) -> dict[str, Any]:
    """A run as plain values; its number as text, since it is beyond what JSON's readers count exactly."""
    job = job_of(run)
    rounds = [line for line in Reader(job.progress).new() if not line.words] if job else []
    newest = rounds[-1] if rounds else None  # of a run whose progress is on this machine
    until = run.ended or datetime.now(UTC)
    return {
        "run": str(run.number),
        "state": run.status.word,
        "details": run.status.details,
        "started": run.began and run.began.isoformat(timespec="seconds"),
        "seconds": run.began and (until - run.began).total_seconds(),
        "round": newest and newest.rounds,
        "rounds": newest and newest.of,
        "out": job and str(job.out),
    }
