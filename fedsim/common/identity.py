"""An identity: the Ed25519 key with which a party signs what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.common.files import whole_file
from fedsim.common.key_file import read_key, write_key
from fedsim.common.signatures import signed_part

KEY_FILE, PUBLIC_FILE = "identity.key", "identity.pub"


class Identity:
    """A private key; `public` is its public half, 64 hexadecimal digits."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Draw a key and write `identity.key` (hexadecimal, mode 0600) and `identity.pub` (public).

        Raises:
            InputError: there is a key already.
        """
        key = Ed25519PrivateKey.generate()
        write_key(folder / KEY_FILE, key.private_bytes_raw(), "identity")
        made = cls(key)
        made.publish(folder)
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `identity.key`.

        Raises:
            InputError: there is none, others may read it, or it is no key.
        """
        return cls(Ed25519PrivateKey.from_private_bytes(read_key(folder / KEY_FILE, "identity")))

    def publish(self, folder: Path) -> None:
        """Write `identity.pub`, whatever is there."""
        with whole_file(folder / PUBLIC_FILE) as draft:
            draft.write_text(f"{self.public}\n")

    def sign(self, body: bytes) -> bytes:
        """The signature, 64 bytes; equal bytes have equal signatures."""
        return self._key.sign(signed_part(body))
