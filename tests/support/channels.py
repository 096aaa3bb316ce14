"""Channels without sockets: silos of this process, and everything that can go wrong on the way."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.deployed import enrolled, write_silos
from torch import Tensor

from fedsim.common.identity import Identity
from fedsim.deployment.federation_file import Federation, parse_federation
from fedsim.scenario.resolve import Resolved
from fedsim.wire.frames import Frame, decode, encode, opened, sealed
from server.federation import NO_FRAMES
from silos.front.config import Config
from silos.front.silo import Silo

Answer = Callable[[bytes], bytes | None]
Fault = Callable[[bytes, Answer], bytes | None]
"""(frame, the silo itself) to what comes back; None for nothing in time."""


@dataclass
class InMemory:
    """Silos that answer at once, each through its fault, if it has one; `asked` has every frame."""

    silos: Mapping[str, Answer]
    faults: dict[str, Fault] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    exchanges: int = 0

    def exchange(
        self, frames: Mapping[str, bytes], deadline: float, knocks: Mapping[str, bytes] = NO_FRAMES
    ) -> dict[str, bytes]:
        self.exchanges += 1
        replies = {}
        for name, frame in {**frames, **knocks}.items():
            told = read(frame)
            self.asked.append((name, told.kind, dict(told.head)))
            fault = self.faults.get(name)
            reply = fault(frame, self.silos[name]) if fault else self.silos[name](frame)
            if reply is not None:
                replies[name] = reply
        return replies

    def kinds(self, name: str) -> list[str]:
        return [kind for silo, kind, _ in self.asked if silo == name]


def read(frame: bytes) -> Frame:
    return decode(opened(frame)[0])


def in_round(r: int | Sequence[int], fault: Fault) -> Fault:
    """The fault in these rounds' asks only."""
    rounds = [r] if isinstance(r, int) else list(r)

    def only(frame: bytes, silo: Answer) -> bytes | None:
        told = read(frame)
        return fault(frame, silo) if told.kind == "ask" and told.head["round"] in rounds else silo(frame)

    return only


def absent(frame: bytes, silo: Answer) -> bytes | None:
    """The frame is lost."""
    return None


def late(frame: bytes, silo: Answer) -> bytes | None:
    """The silo answers, and the answer is lost."""
    silo(frame)
    return None


def garbled(frame: bytes, silo: Answer) -> bytes | None:
    """A bit is turned on the way."""
    reply = bytearray(silo(frame) or b"")
    reply[-1] ^= 1
    return bytes(reply)


def signing(identity: Identity, change: Callable[[Frame], Frame]) -> Fault:
    """The silo itself signs another answer."""

    def fault(frame: bytes, silo: Answer) -> bytes | None:
        body = encode(change(read(silo(frame) or b"")))
        return sealed(body, identity.sign(body))

    return fault


def lying(identity: Identity, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Fault:
    """The silo itself signs other arrays."""
    return signing(identity, lambda said: Frame(said.kind, said.head, change(said.arrays)))


@dataclass
class Enrolled:
    """Enrolled silos of a scenario and their federation.

    Attributes:
        folder: one folder a silo.
        configs: of the silos, by name.
        federation: as its server knows it.
    """

    folder: Path
    resolved: Resolved
    configs: dict[str, Config]
    federation: Federation

    @property
    def files(self) -> list[Path]:
        return [self.folder / name / "silo.yaml" for name in self.configs]

    def again(self, **changes: Any) -> Federation:
        """The federation with other fields; those of a silo are under its name."""
        tree = self.federation.model_dump(mode="json", exclude_none=True)
        silos = {name: {**silo, **changes.pop(name, {})} for name, silo in tree["silos"].items()}
        return parse_federation({**tree, **changes, "silos": silos})

    def identity(self, name: str) -> Identity:
        return Identity.load(self.configs[name].state)

    @contextmanager
    def opened(self, seeded: bool) -> Iterator[InMemory]:
        """Their silos in this process."""
        with ExitStack() as stack:
            silos = {name: Silo.open(config, seeded) for name, config in self.configs.items()}
            for silo in silos.values():
                stack.callback(silo.close)
            yield InMemory({name: silo.answer for name, silo in silos.items()})


def enrolled_federation(
    folder: Path,
    resolved: Resolved,
    seeded: bool = True,
    policy: Mapping[str, Any] | None = None,
    rosters: Sequence[str] = (),
    holdout: float | None = None,
    public: Sequence[str] = (),
    **more: Any,
) -> Enrolled:
    """New silos in `folder`, which pin `rosters`; `more` are fields of federation.yaml."""
    asked = {"seeded": seeded, "policy": policy, "rosters": rosters, "holdout": holdout, "public": public}
    files = write_silos(folder, resolved, **asked)
    configs = {config.name: config for config in enrolled(files)}
    silos = {
        name: {"identity": str(config.state / "identity.pub"), "socket": str(folder / name / "silo.sock")}
        for name, config in configs.items()
    }
    federation = parse_federation({"silos": silos, "deadline": 20, **more})
    return Enrolled(folder, resolved, configs, federation)
