"""A silo's identity: the Ed25519 key that signs what it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
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
        place = folder / KEY_FILE
        if place.exists():
            raise InputError("identity", str(place), "there is a key already; it is never replaced")
        key = Ed25519PrivateKey.generate()
        with whole_file(place) as draft:
            handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{key.private_bytes_raw().hex()}\n")
        made = cls(key)
        with whole_file(folder / PUBLIC_FILE) as draft:
            draft.write_text(f"{made.public}\n")
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `identity.key`.

        Raises:
            InputError: there is none, others may read it, or it is no key.
        """
        place = folder / KEY_FILE
        try:
            mode, text = place.stat().st_mode, place.read_text()
        except (OSError, UnicodeDecodeError):
            raise InputError("identity", str(place), "a key file that can be read") from None
        if mode & 0o077:
            raise InputError("identity", str(place), "readable by its owner alone (chmod 600)")
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.strip())))
        except ValueError:  # which would quote the key
            raise InputError("identity", str(place), "64 hexadecimal digits") from None

    def sign(self, body: bytes) -> bytes:
        """The signature, 64 bytes; equal bytes have equal signatures."""
        return self._key.sign(signed_part(body))
