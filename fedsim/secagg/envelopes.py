"""Envelopes that one party can open, for one purpose: HPKE (RFC 9180), base mode.

The suite is X25519, HKDF-SHA256 and ChaCha20-Poly1305. What an envelope is for (`info`) is bound to it: where
the two ends do not agree on it, it does not open. It does not say who sealed it; a party that needs to know
that signs (`fedsim.secagg.reports`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import read_key, write_key, write_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import Suite

OVERHEAD = 48  # bytes of an envelope beside its content: a public key of 32 and a tag of 16
KEY_FILE, PUBLIC_FILE = "envelopes.key", "envelopes.pub"


class EnvelopeKey:
    """A private X25519 key; `public` is its public half, 64 hexadecimal digits."""

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    @classmethod
    def draw(cls) -> Self:
        """A new key, kept nowhere."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.generate())

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Draw a key: `envelopes.key` (hexadecimal, 0600), `envelopes.pub`. InputError if there is one."""
        made = cls.draw()
        write_key(folder / KEY_FILE, made._key.private_bytes_raw(), "envelopes")
        write_line(folder / PUBLIC_FILE, made.public, 0o644)
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """`read` of `envelopes.key`."""
        return cls.read(folder / KEY_FILE, "envelopes")

    @classmethod
    def read(cls, file: Path, field: str) -> Self:
        """Read a key's file; InputError on `field` if there is none, others may read it, or it is no key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.from_private_bytes(read_key(file, field)))

    def open(self, envelope: bytes, info: bytes) -> bytes:
        """What was sealed to this key for this purpose; Refused if it was not, or it is damaged."""
        from cryptography.exceptions import InvalidTag

        try:
            return _suite().decrypt(envelope, self._key, info=info)
        except InvalidTag:
            why = "an envelope that is not for this key, run, round and roster, or is damaged"
            raise Refused(why) from None


def seal(content: bytes, public: str, info: bytes) -> bytes:
    """An envelope, `OVERHEAD` bytes longer than `content`; InputError if `public` is no X25519 public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return _suite().encrypt(content, X25519PublicKey.from_public_bytes(bytes.fromhex(public)), info=info)
    except ValueError:  # of a point of small order
        raise InputError("key", public, "an X25519 public key as 64 hexadecimal digits") from None


@cache
def _suite() -> Suite:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
