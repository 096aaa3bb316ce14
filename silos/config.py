"""silo.yaml: a silo's records, its state, where it listens, and its policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedsim.algorithms.registry import GROUP as ALGORITHMS
from fedsim.common.errors import InputError
from fedsim.common.plugins import listed
from fedsim.common.section import Section, check_flags, complaint
from fedsim.common.serialise import mapping
from fedsim.data.dataset import Dataset
from fedsim.data.registry import OWN, DataConfig
from fedsim.isolated.confine import CHILD, Child, start, unavailable
from fedsim.problems.kinds import GROUP as PROBLEMS
from fedsim.wire.listener import AtPort, AtSocket
from fedsim.wire.messages import Hex32, SiloName
from silos.policy import Policy

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
    reader: tuple[str, ...] = Field(
        (),
        description="a command that writes the table at records.path to its standard output; it runs once, "
        "at enrolment, in that folder",
    )
    state: Path = Field(description="folder of ledger, identity key and log")
    listen: AtSocket | AtPort = Field(description="{socket: path}, or {port: number, token: path}")
    policy: Policy = Field(description="what it agrees to")
    rosters: tuple[Path, ...] = Field(
        (), description="files of the rosters whose sums it takes part in; what its operator has agreed to"
    )
    plug_in_folder: Path | None = Field(
        None,
        description="where the code that policy.plug_ins lists is installed (pip install --target); only its "
        "confined process has it on its path",
    )
    insecure_simulation: InsecureSimulation | None = Field(None, description="for tests: noise from a seed")

    @property
    def ledger(self) -> Path:
        """Its ledger's file."""
        return self.state / "ledger.sqlite"

    def start_child(self) -> Child:
        """A confined process for plug-in code; it sees neither records nor state.

        Raises:
            Refused: the kernel cannot confine it.
        """
        return start([CHILD], self.plug_in_folder, hidden=self.hidden)

    @property
    def hidden(self) -> list[Path]:
        """What plug-in code must not see."""
        token = [self.listen.token] if isinstance(self.listen, AtPort) else []
        return [self.state, *self.records.files.values(), *self.rosters, *token]


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
    _check_records(config.records)
    if config.reader and not isinstance(getattr(config.records, "path", None), Path):
        hint = "writes one table, so records.path must name one file"
        raise InputError(f"{ROOT}.reader", list(config.reader), hint)
    _check_plug_ins(config)
    return config


def _check_plug_ins(config: Config) -> None:
    """What is listed is installed, found by its metadata alone, and can be confined here."""
    names, folder = config.policy.plug_ins, config.plug_in_folder
    if not names:
        return
    if folder is None:
        raise InputError(f"{ROOT}.plug_in_folder", None, "is required with policy.plug_ins")
    if not folder.is_dir():
        raise InputError(f"{ROOT}.plug_in_folder", str(folder), "must be a folder")
    groups = listed(folder)
    known = [name for group in (ALGORITHMS, PROBLEMS) for name in groups.get(group, {})]
    for name in names:
        if ":" not in name and name not in known:
            hint = f"no algorithm or problem in plug_in_folder; there are: {', '.join(known) or 'none'}"
            raise InputError(f"{ROOT}.policy.plug_ins", name, hint)
    if reason := unavailable():
        raise InputError(f"{ROOT}.policy.plug_ins", list(names), reason)
    for path in config.hidden:
        if path.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(path.resolve()):
            hint = f"must lie apart from {path}: plug-ins see all of it"
            raise InputError(f"{ROOT}.plug_in_folder", str(folder), hint)


_FILES = {
    ("state",),
    ("rosters",),
    ("plug_in_folder",),
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


def _check_records(records: Dataset) -> None:
    """Refuse what a silo alone cannot do, and a reader that fedsim does not ship."""
    if type(records) not in OWN.values():
        hint = "never where records are held: name a table, and in `reader` a command that writes it"
        raise InputError(f"{ROOT}.records.name", records.name, hint)
    records.check_alone(f"{ROOT}.records")
    for field in ("test_fraction", "reserve", "origin"):
        if field in records.model_fields_set:
            hint = "exists in simulation only: a silo trains on all of its own records"
            raise InputError(f"{ROOT}.records.{field}", getattr(records, field), hint)
