"""silo.yaml: a silo's records, its state, where it listens, and its policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedsim.common.complaints import check_flags, complaint
from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.common.yaml_file import mapping
from fedsim.data.dataset import Dataset
from fedsim.data.registry import DataConfig
from fedsim.protocol.listener import AtPort, AtSocket
from fedsim.protocol.messages import Hex32, SiloName
from silos.policy import Policy, is_own

ROOT = "silo"
"""What errors call the file."""


class InsecureSimulation(Section):
    """Noise from a seed: for tests, without any privacy; only with --insecure-simulation."""

    seed: int = Field(ge=0, description="the scenario's")
    trial: int = Field(0, ge=0, description="which trial")
    run: Hex32 = Field(description="digest of the simulated run (`fedsim.simulation.run_digest`)")


class Config(Section):
    """One silo."""

    name: SiloName = Field(description="the silo, as the federation calls it")
    records: DataConfig = Field(description="its records: a scenario's data section; all of them are its own")
    state: Path = Field(description="folder of ledger, identity key and log")
    listen: AtSocket | AtPort = Field(description="{socket: path}, or {port: number, token: path}")
    policy: Policy = Field(description="what it agrees to")
    rosters: tuple[Path, ...] = Field(
        (), description="files of the rosters whose sums it takes part in; what its operator has agreed to"
    )
    insecure_simulation: InsecureSimulation | None = Field(None, description="for tests: noise from a seed")

    @property
    def ledger(self) -> Path:
        """Its ledger's file."""
        return self.state / "ledger.sqlite"


def load_config(path: Path) -> Config:
    """The silo that a file describes; file names in it are relative to the file.

    Raises:
        InputError: it cannot be read, or a field is wrong.
    """
    tree = _anchored(mapping(path, ROOT, "records:"), path.resolve().parent)
    return parse_config(tree)


def parse_config(tree: Any) -> Config:
    """Validate a silo given as plain mappings; file names are relative to the working directory."""
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise complaint(error, tree, root=ROOT, model=Config) from None
    check_flags({**tree, "policy": {**tree["policy"], "plug_ins": ()}}, config.model_dump(), ROOT)
    _check_records(config.records, config.policy)
    return config


_FILES = {
    ("state",),
    ("rosters",),
    ("listen", "socket"),
    ("listen", "token"),
    ("records", "schema"),
}


def _anchored(tree: Any, folder: Path, place: tuple[str, ...] = ()) -> Any:
    if isinstance(tree, dict):
        return {key: _anchored(value, folder, (*place, key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_anchored(value, folder, place) for value in tree]
    is_file = place in _FILES or place[:2] == ("records", "path")  # of which there may be several
    return str(folder / tree) if isinstance(tree, str) and is_file else tree


def _check_records(records: Dataset, policy: Policy) -> None:
    """Refuse what a silo alone cannot do, and code that its policy does not list."""
    if not is_own(type(records)) and records.name not in policy.plug_ins:
        raise InputError(f"{ROOT}.records.name", records.name, "is a plug-in: list it under policy.plug_ins")
    records.check_alone(f"{ROOT}.records")
    for field in ("test_fraction", "reserve", "origin"):
        if field in records.model_fields_set:
            expected = "exists in simulation only: a silo trains on all of its own records"
            raise InputError(f"{ROOT}.records.{field}", getattr(records, field), expected)
