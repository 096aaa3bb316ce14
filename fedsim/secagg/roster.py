"""roster.yaml: who takes part in a federation whose silos' answers are only ever seen as a sum.

The silos' operators agree on it and pin its digest, and so does the shuffler's operator; the server takes it
as it is. Everything that the guarantee rests on and that a server could otherwise choose stands in it.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import InputError
from fedsim.common.section import Section, settings
from fedsim.common.serialise import canonical, mapping
from fedsim.wire.messages import Hex32, Name, SiloName

ROOT = "roster"  # the first part of a field name in errors about the file


class ShufflerKeys(Section):
    """Both public keys of the shuffler, as `fedsim shuffler --enrol` prints them."""

    key: Hex32 = Field(description="what reports are sealed to: X25519, 64 hexadecimal digits")
    identity: Hex32 = Field(description="what it signs with: Ed25519, 64 hexadecimal digits")


class Roster(Section):
    """The parties of a federation by their public keys, and the terms of their sums."""

    federation: Name = Field(description="what the federation is called")
    silos: Annotated[dict[SiloName, Hex32], Field(min_length=1)] = Field(
        description="each silo's identity by its name: Ed25519, 64 hexadecimal digits"
    )
    server: Hex32 = Field(description="what the server's shares are sealed to: X25519, 64 hexadecimal digits")
    shuffler: ShufflerKeys = Field(description="the shuffler's keys")
    min_silos: int = Field(ge=1, description="silos in a sum at least; noise is shared out among so many")
    honest_fraction: float = Field(
        gt=0, le=1, description="of min_silos, the share that adds its noise, whichever silos a sum is of"
    )
    noise_by: Literal["silos", "aggregators"] = Field(
        "silos", description="who adds noise: each silo a part, or server and shuffler each all of it"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_silos > len(self.silos):
            raise InputError("min_silos", self.min_silos, f"at most {len(self.silos)}, the number of silos")
        if self.server == self.shuffler.key:
            raise InputError("server", self.server, "another key than the shuffler's: no party may hold both")
        signers = {self.shuffler.identity: "the shuffler"}
        for name, identity in self.silos.items():
            if identity in signers:
                hint = f"another identity than that of {signers[identity]}"
                raise InputError(f"silos.{name}", identity, hint)
            signers[identity] = name
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The silos in canonical order; a silo's position in it is what reports say."""
        return tuple(sorted(self.silos))

    @cached_property
    def identities(self) -> tuple[bytes, ...]:
        """The silos' Ed25519 public keys, 32 bytes each, in canonical order."""
        return tuple(bytes.fromhex(self.silos[name]) for name in self.names)

    @cached_property
    def digest(self) -> str:
        """The roster's name: SHA-256 of its canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()


def load_roster(path: Path) -> Roster:
    """The roster that a file holds; InputError if it cannot be read, or a field is wrong."""
    return parse_roster(mapping(path, ROOT, "silos:"))


def parse_roster(tree: Any) -> Roster:
    """Validate a roster given as plain mappings; InputError if a field is wrong."""
    return settings(Roster, tree, ROOT)
