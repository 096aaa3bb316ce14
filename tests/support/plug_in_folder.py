"""A folder of plug-ins as `pip install --target` leaves it, and deployed silos that list them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from support.deployed import Caller, enrolled, offer_of, resolved_of, write_silos

from silos.front.silo import Silo

RESOLVED = resolved_of()
SGD = """
from dataclasses import dataclass
from fedsim import Query, Round

@dataclass(frozen=True)
class Sgd:
    num_rounds: int
    clip_norm: float
    linear = True

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.descend(w, mean["g"], 0.5)
        return w
"""
"""An algorithm without its silo method."""


def plug_in_folder(folder: Path, code: str, group: str = "fedsim.algorithms", **parts: str) -> Path:
    """Write the module `theirs` with this code, and entry points {name: class} of a group."""
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "theirs.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "".join(f"{name} = theirs:{kind}\n" for name, kind in parts.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}")
    return folder


def plug_in_silo(folder: Path, plug_ins: Path, listed: Sequence[str], **policy: Any) -> Path:
    """The configuration of a silo of RESOLVED, not enrolled, whose policy lists these plug-ins."""
    path = write_silos(folder / "silos", RESOLVED, policy={"plug_ins": list(listed), **policy})[0]
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "plug_in_folder": str(plug_ins)}))
    return path


def sgd_silo(folder: Path, code: str, **policy: Any) -> Path:
    """The configuration of a silo that lists the algorithm `theirs_sgd`, the class Sgd of this code."""
    return plug_in_silo(
        folder, plug_in_folder(folder / "plug-ins", code, theirs_sgd="Sgd"), ["theirs_sgd"], **policy
    )


def sgd_offer(num_rounds: int = 3) -> dict[str, Any]:
    algorithm = {"name": "theirs_sgd", "num_rounds": num_rounds, "clip_norm": 1.0}
    return {**offer_of(RESOLVED, "silo-00"), "algorithm": algorithm}


def opened(path: Path) -> Caller:
    """The server's side of the silo, enrolled and open."""
    return Caller(Silo.open(enrolled([path])[0]))
