"""shuffler.yaml: the shuffler's state, the rosters that its operator has pinned, and where it listens."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section, settings
from fedsim.common.serialise import mapping
from fedsim.secagg.roster import Roster, load_roster
from fedsim.wire.connections import AtPort, AtSocket, MetricsAt

ROOT = "shuffler"  # the first part of a field name in errors about the file


class Config(Section):
    """One shuffler."""

    state: Path = Field(description="folder of its keys, its notes and its log")
    listen: AtSocket | AtPort = Field(description="{socket: path}, or {port: number, token: path}")
    rosters: tuple[Path, ...] = Field((), description="files of the rosters that its operator has agreed to")
    metrics: MetricsAt | None = Field(None, description="where Prometheus finds its public numbers")
    max_request: int = Field(2**28, ge=1, description="bytes of a request at most: all reports of a round")

    @property
    def notes(self) -> Path:
        """The file of what was released."""
        return self.state / "released.sqlite"

    def load_rosters(self) -> list[Roster]:
        """The rosters; InputError if there is none, or one cannot be read."""
        if not self.rosters:
            hint = "at least one roster's file; without one no server is served"
            raise InputError(f"{ROOT}.rosters", [], hint)
        return [load_roster(path) for path in self.rosters]


_FILES = ("state", "rosters", "listen.socket", "listen.token")


def load_config(path: Path) -> Config:
    """A file's shuffler; names in it are relative to it. InputError if unreadable, or a field is wrong."""
    return settings(Config, mapping(path, ROOT, "listen:", _FILES), ROOT)
