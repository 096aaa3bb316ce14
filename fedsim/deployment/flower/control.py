"""What an operator asks of a running SuperLink: let nodes in, start a run, say how it is.

These are requests of Flower's Control API, which the commands `flwr supernode register`, `flwr run`, `flwr
list` and `flwr stop` send too; each of those takes two seconds to start, one of these 10 ms. The command

    python -m fedsim.deployment.flower.control federation.yaml

lets the nodes of a federation in.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto import control_pb2
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fedsim.common.chain import RUN
from fedsim.common.errors import CAN_BEGIN, CAN_RESUME, InputError
from fedsim.deployment.federation_file import ROOT, load_federation
from fedsim.deployment.node_keys import node_keys, normal
from fedsim.wire.service import exit_code

_BUNDLE = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "fedsim-deployment"
version = "1.0.0"
description = "Names what is installed already."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsim"

[tool.flwr.app.components]
serverapp = "{serverapp}"
clientapp = "{serverapp}"

[tool.flwr.app.config]
{settings}"""

Config = Mapping[str, str | bool | int | float]


def _bundle(serverapp: str, config: Config) -> Fab:
    """What a run ships: the ServerApp's name and its settings, in Flower's archive.

    Flower requires a ClientApp too; silos run none, so it names the ServerApp again.
    """
    # JSON's text, numbers and booleans are TOML's
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    project = _BUNDLE.format(serverapp=serverapp, settings=settings).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pyproject.toml", project)
        line = f"pyproject.toml,{hashlib.sha256(project).hexdigest()},{8 * len(project)}"
        archive.writestr(".info/CONTENT", line)
    return Fab(hashlib.sha256(made.getvalue()).hexdigest(), made.getvalue(), {})


class Away(InputError):
    """A SuperLink that is not there, for now or for good."""


STOPPED = "stopped by its operator"  # how a run begins that was asked to end after a round
_ENDS = CAN_RESUME, CAN_BEGIN
_SAID = "ServerApp failed with exception: "  # how Flower begins what a run's process has raised


@dataclass(frozen=True)
class Status:
    """How a run is: "pending", "starting", "running", "completed", "failed" or "stopped", or "away" where its
    SuperLink does not say; and why.
    """

    word: str
    details: str
    away: bool = False  # whether its SuperLink was away meanwhile

    @property
    def cut_off(self) -> bool:
        """Whether the run's process has ended without a word of its own, as when it was killed."""
        return self.word == "failed" and not self.details.startswith(_SAID)

    @property
    def held(self) -> bool:
        """Whether an earlier process of the run, which its SuperLink gave up, has not ended yet."""
        return self.details.endswith(f"another process holds {RUN.name}")

    @property
    def heals(self) -> bool:
        """Whether the run may come to its end if it is resumed as it is."""
        return self.word == "away" or self.cut_off or self.held or self.details.endswith(_ENDS)

    @property
    def goes_on(self) -> bool:
        """Whether it may be resumed by hand: also what its operator has stopped."""
        return self.heals or self.word == "stopped" or self.details.startswith(f"{_SAID}{STOPPED}")

    @property
    def over(self) -> bool:
        """Whether the run has completed, failed or been stopped."""
        return self.word in ("completed", "failed", "stopped")


@dataclass(frozen=True)
class Node:
    """A node as the SuperLink sees it."""

    status: str  # "registered", "online", "offline"
    contact: datetime | None  # the last one, to the minute; None before the first


@dataclass(frozen=True)
class Submitted:
    """A run that was started at the SuperLink."""

    number: int
    status: Status
    began: datetime | None
    ended: datetime | None
    settings: Config  # it was started with these (`fedsim.deployment.flower.app`)


class Control(AbstractContextManager["Control"]):
    """Requests to the SuperLink at HOST:PORT, whose certificate `root_certificates` (a file) vouches for.
    From every method but `answers` Away if it cannot be reached, InputError if it says no.
    """

    def __init__(self, address: str, root_certificates: Path) -> None:
        self.address = address
        try:
            roots = root_certificates.read_bytes()
        except OSError as error:
            raise InputError("root_certificates", str(root_certificates), str(error.strerror)) from None
        named = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._client = ControlHttpClient.from_server_address(address, False, roots, [named])

    def answers(self) -> bool:
        """Whether the SuperLink answers a request."""
        with suppress(InputError):
            self.nodes()
            return True
        return False

    def nodes(self) -> dict[bytes, str]:
        """The status of every node that is let in ("registered", "online", "offline"), by its public key."""
        return {key: node.status for key, node in self.seen().items()}

    def seen(self) -> dict[bytes, Node]:
        """Every node that is let in, by its public key."""
        found = self._ask(self._client.ListNodes, control_pb2.ListNodesRequest()).nodes_info
        return {normal(node.public_key): Node(node.status, _contact(node)) for node in found}

    def register(self, key: bytes, name: str) -> None:
        """Let a node in by its public key, PEM (`fedsim.deployment.node_keys.node_key`); one that is known
        already stays. Flower's own tools show the `name`.
        """
        if key not in self.nodes():
            self._ask(self._client.RegisterNode, control_pb2.RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, key: bytes) -> bool:
        """Let a node in no more; whether it was known by this key (PEM)."""
        nodes = self._ask(self._client.ListNodes, control_pb2.ListNodesRequest()).nodes_info
        found = [node.node_id for node in nodes if normal(node.public_key) == key]
        for node in found:
            self._ask(self._client.UnregisterNode, control_pb2.UnregisterNodeRequest(node_id=node))
        return bool(found)

    def start(self, config: Config, serverapp: str = "fedsim.deployment.flower.app:app") -> int:
        """Start a run with this configuration; its number.

        What is sent names the ServerApp, which is installed already, and holds no code.
        """
        bundle = fab_to_proto(_bundle(serverapp, config))
        # again, since the SuperLink lists these and no bundle's
        settings = user_config_to_proto(dict(config))
        request = control_pb2.StartRunRequest(fab=bundle, override_config=settings, federation="")
        return int(self._ask(self._client.StartRun, request).run_id)

    def status(self, run: int) -> Status:
        """How a run is."""
        found = self._ask(self._client.ListRuns, control_pb2.ListRunsRequest(run_id=run)).run_dict[run]
        return _submitted(found).status

    def runs(self) -> list[Submitted]:
        """The last runs, newest first."""
        found = self._ask(self._client.ListRuns, control_pb2.ListRunsRequest()).run_dict.values()
        return [_submitted(run) for run in sorted(found, key=lambda run: run.pending_at, reverse=True)]

    def stop(self, run: int) -> None:
        """End a run."""
        self._ask(self._client.StopRun, control_pb2.StopRunRequest(run_id=run))

    def _ask(self, call: Any, request: object) -> Any:
        try:
            return call(request)
        except httpx.TransportError as error:
            raise Away("superlink", self.address, f"a SuperLink that answers ({error})") from None
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            kind = Away if code in (502, 503, 504) else InputError  # by what stands before it
            said = f"a SuperLink of flwr {version('flwr')} (it answers {code})"
            raise kind("superlink", self.address, said) from None

    def __exit__(self, *_: object) -> None:
        self._client.close()


def _submitted(proto: Any) -> Submitted:
    run = run_from_proto(proto)
    status = Status(run.status.sub_status or run.status.status, run.status.details)
    times = (run.running_at or run.pending_at, run.finished_at)
    began, ended = (datetime.fromisoformat(time) if time else None for time in times)
    return Submitted(run.run_id, status, began, ended, dict(run.override_config))


def _contact(node: Any) -> datetime | None:
    """Of a node that is online, its last heartbeat; otherwise when it went, or no longer counted as there."""
    if not node.online_until:
        return None
    since = HEARTBEAT_PATIENCE * node.heartbeat_interval if node.status == "online" else 0.0
    return datetime.fromtimestamp(node.online_until - since, UTC)


def enroll(control: Control, keys: Mapping[str, bytes]) -> None:
    """Let in every silo's node by its key, {name: PEM}; those in already stay. InputError as `Control`."""
    for name, key in keys.items():
        control.register(key, name)


def main() -> int:
    """Let in the nodes of the federation that is named, and say so."""
    federation = load_federation(Path(sys.argv[1]))
    if federation.superlink is None:
        raise InputError(f"{ROOT}.superlink", None, "host:port")
    with Control(federation.superlink, federation.authority) as control:
        enroll(control, node_keys(federation))
    print(f"let in: {', '.join(federation.silos)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
