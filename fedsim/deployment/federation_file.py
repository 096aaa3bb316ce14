"""federation.yaml: the silos as the server's side knows them, and how long it waits for them.

Beside it the server keeps the last entry that it knows of each silo's ledger (`read_heads`, `write_heads`). A
silo that is shown an entry that it does not know has lost some, for example because its disk was restored
from an older snapshot, and refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.identity import public_key
from fedsim.common.registry import Later
from fedsim.common.section import Section, settings
from fedsim.common.serialise import mapping
from fedsim.wire.connections import MetricsAt
from fedsim.wire.dial import Address, read_token
from fedsim.wire.messages import Echo, SiloName

if TYPE_CHECKING:
    from fedsim.data.registry import DataConfig
else:
    DataConfig = Annotated[Any, Later("fedsim.data.registry:DataConfig")]

ROOT = "federation"  # the first part of a field name in errors about the file
_DAY = 86400  # seconds


class _Party(Section):
    """A party whose daemon listens on this machine."""

    socket: Path | None = Field(None, description="its daemon's Unix socket")
    port: int | None = Field(None, ge=1, le=65535, description="its daemon's port of 127.0.0.1")
    token: Path | None = Field(None, description="with port: the file with the daemon's token")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.socket is not None and self.port is not None:
            raise InputError("port", self.port, "there is a socket already; name one of the two")
        if (self.port is None) != (self.token is None):
            raise InputError("token", self.token, "port and token go together")
        return self

    def dialled(self, field: str, hint: str) -> Address:
        """Where it listens; InputError on `field` if the file does not say."""
        if self.socket is not None:
            return self.socket
        if self.port is None or self.token is None:
            raise InputError(f"{field}.socket", None, hint)
        return self.port, read_token(self.token)


class SiloEntry(_Party):
    """One silo: who it is, and where its daemon is where no Flower is between."""

    identity: Path = Field(description="its identity's public key: 64 hexadecimal digits in a file")
    node: Path | None = Field(None, description="public key of its Flower node")


class ShufflerEntry(_Party):
    """The shuffler of a federation whose silos' answers are only ever added up."""

    roster: Path = Field(description="the roster that silos and shuffler have pinned")
    key: Path = Field(description="the server's own private key for envelopes, envelopes.key")

    @property
    def address(self) -> Address:
        """Where it listens; InputError if the file does not say."""
        return self.dialled(f"{ROOT}.shuffler", "needs a socket, or a port and a token")


class Federation(Section):
    """Who takes part, and how patient the server is."""

    silos: dict[SiloName, SiloEntry] = Field(description="the silos, by name")
    deadline: float = Field(60.0, gt=0, le=_DAY, description="seconds that silos have for a round")
    min_silos: int | None = Field(
        None, ge=1, description="answers that a round needs, where so many are asked; default: all"
    )
    patience: float = Field(
        600.0,
        gt=0,
        le=30 * _DAY,
        description="seconds for a round with too few answers, and for a SuperLink that is away",
    )
    test: DataConfig | None = Field(
        None,
        description="public records of the server's own to test with: an npz file of prepared features (with "
        "their intercept) and targets, or a data section that prepares them as the silos' do",
    )
    heads: Path | None = Field(
        None, description="file in which the last entry known of each silo's ledger is kept between runs"
    )
    shuffler: ShufflerEntry | None = Field(
        None, description="for secure aggregation: the party that adds the other shares"
    )
    metrics: MetricsAt | None = Field(None, description="where Prometheus finds how a run goes")
    superlink: str | None = Field(None, description="host:port of Flower's SuperLink")
    root_certificates: Path | None = Field(None, description="whom its TLS certificate is signed by")

    @property
    def identities(self) -> dict[str, bytes]:
        """Every silo's Ed25519 public key, 32 bytes. InputError if a file cannot be read or holds something
        else, or two silos have one identity.
        """
        found: dict[str, bytes] = {}
        for name, silo in self.silos.items():
            field = f"{ROOT}.silos.{name}.identity"
            try:
                key = public_key(silo.identity.read_text("ascii"), field)
            except (OSError, UnicodeDecodeError) as error:
                hint = f"cannot be read ({type(error).__name__})"
                raise InputError(field, str(silo.identity), hint) from None
            if key in found.values():
                raise InputError(field, str(silo.identity), "is another silo's identity too")
            found[name] = key
        return found

    @property
    def addresses(self) -> dict[str, Address]:
        """Where the daemons are, without Flower; InputError if a silo has no address here."""
        hint = "needs a socket, or a port and a token, where there is no Flower between"
        return {name: silo.dialled(f"{ROOT}.silos.{name}", hint) for name, silo in self.silos.items()}

    def check_enough(self) -> None:
        """InputError if there are fewer silos than a run needs: they are added one by one."""
        if self.min_silos is not None and self.min_silos > len(self.silos):
            hint = f"at most {len(self.silos)}, the number of silos"
            raise InputError(f"{ROOT}.min_silos", self.min_silos, hint)

    @property
    def authority(self) -> Path:
        """The file `root_certificates`; InputError if there is none."""
        if self.root_certificates is None:
            raise InputError(f"{ROOT}.root_certificates", None, "the file ca.crt, as `fedsim certs` makes it")
        return self.root_certificates


_FILES = (
    *(f"silos.*.{field}" for field in ("identity", "node", "socket", "token")),
    *(f"shuffler.{field}" for field in ("roster", "key", "socket", "token")),
    *("test", "test.path", "test.schema", "heads", "root_certificates"),
)


def load_federation(path: Path, begun: bool = False) -> Federation:
    """The federation that a file describes; file names in it are relative to the file. InputError if it
    cannot be read, a field is wrong, or it has no silo and is not said to be only `begun`.
    """
    return parse_federation(mapping(path, ROOT, "silos:", _FILES), begun)


def parse_federation(tree: Any, begun: bool = False) -> Federation:
    """Validate a federation given as plain mappings; file names are relative to the working directory.
    InputError as `load_federation`.
    """
    if begun and isinstance(tree, dict) and tree.get("silos") is None:
        tree = {**tree, "silos": {}}
    if isinstance(tree, dict) and isinstance(tree.get("test"), str):
        tree = {**tree, "test": {"name": "npz", "path": tree["test"], "scaling": "none", "intercept": False}}
    made = settings(Federation, tree, ROOT)
    if not made.silos and not begun:
        raise InputError(f"{ROOT}.silos", None, "at least one silo: fedsim federation add")
    if made.test is not None:
        made.test.check_alone(f"{ROOT}.test")
    return made


def read_heads(path: Path | None) -> dict[str, str]:
    """The heads in the file, or none if there is no file yet; InputError if it is damaged."""
    if path is None or not path.exists():
        return {}
    try:
        return TypeAdapter(dict[str, Echo]).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        hint = "is damaged; without it, lost ledger entries are noticed within a run only: remove it to go on"
        raise InputError("federation.heads", str(path), hint) from None


def write_heads(path: Path | None, heads: dict[str, str]) -> None:
    """Write them for the next run."""
    if path is not None and heads:
        with atomic_file(path) as draft:
            draft.write_text(json.dumps(heads, indent=1, sort_keys=True) + "\n", encoding="utf-8")
