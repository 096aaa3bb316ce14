"""The shuffler's two private keys: what reports are sealed to, and what it signs with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedsim.common.identity import Identity
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.roster import ShufflerKeys


@dataclass(frozen=True)
class Keys:
    """An X25519 key and an Ed25519 key."""

    envelopes: EnvelopeKey
    identity: Identity

    @classmethod
    def draw(cls) -> Self:
        """New ones, kept nowhere: for a simulation."""
        return cls(EnvelopeKey.draw(), Identity.draw())

    @classmethod
    def create(cls, folder: Path) -> Self:
        """New ones in files, mode 0600; InputError if there is a key already."""
        return cls(EnvelopeKey.create(folder), Identity.create(folder))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Those in files; InputError if one is not there, is no key, or may be read by others."""
        return cls(EnvelopeKey.load(folder), Identity.load(folder))

    @property
    def public(self) -> ShufflerKeys:
        """The public halves, as a roster lists them."""
        return ShufflerKeys(key=self.envelopes.public, identity=self.identity.public)
