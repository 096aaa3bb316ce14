"""An identity: the Ed25519 key with which a party signs what it says; and how signatures are checked.

Public keys are 64 hexadecimal digits. What is signed is the SHA-256 of a body: Ed25519 alone goes over a body
twice, which takes ten times longer. Secret keys are in files that their owner alone may read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError

if TYPE_CHECKING:  # who signs nothing loads no cryptography
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE, PUBLIC_FILE = "identity.key", "identity.pub"
RECEIPT, RECEIPT_FORMAT = b"fedsim receipt\n", 1  # before a receipt that is signed; no frame begins so


class Identity:
    """A private key; `public` is its public half, 64 hexadecimal digits."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    @classmethod
    def draw(cls) -> Self:
        """A new key, kept nowhere."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Draw a key and write `identity.key` (hexadecimal, mode 0600) and `identity.pub` (public);
        InputError if there is a key already.
        """
        made = cls.draw()
        write_key(folder / KEY_FILE, made._key.private_bytes_raw(), "identity")
        made.publish(folder)
        return made

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `identity.key` (see `read_key`)."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.from_private_bytes(read_key(folder / KEY_FILE, "identity")))

    def publish(self, folder: Path) -> None:
        """Write `identity.pub`, whatever is there."""
        write_line(folder / PUBLIC_FILE, self.public, 0o644)

    def sign(self, body: bytes) -> bytes:
        """The signature, 64 bytes; equal bytes have equal signatures."""
        return self._key.sign(signed_part(body))


def write_key(place: Path, secret: bytes, field: str) -> None:
    """Write a secret of 32 bytes, mode 0600; InputError on `field` if there is a key already."""
    if place.exists():
        raise InputError(field, str(place), "there is a key already; it is never replaced")
    write_line(place, secret.hex(), 0o600)


def write_line(place: Path, text: str, mode: int) -> None:
    """Write a line, whatever is there, with this mode whatever the umask."""
    with atomic_file(place) as draft:
        draft.touch(0o600, exist_ok=False)
        draft.write_text(f"{text}\n")
        draft.chmod(mode)


def read_key(place: Path, field: str) -> bytes:
    """The secret, 32 bytes; InputError on `field`, without the content, if it is missing, readable by others
    or no key.
    """
    try:
        mode, text = place.stat().st_mode, place.read_text()
    except (OSError, UnicodeDecodeError):
        raise InputError(field, str(place), "a key file that can be read") from None
    if mode & 0o077:
        raise InputError(field, str(place), "readable by its owner alone (chmod 600)")
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:  # which would quote the key
        secret = b""
    if len(secret) != 32:
        raise InputError(field, str(place), "64 hexadecimal digits")
    return secret


def public_key(text: str, field: str = "identity") -> bytes:
    """The public key in a line of hexadecimal digits, 32 bytes; InputError on `field` if it is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text.strip())).public_bytes_raw()
    except ValueError:
        raise InputError(field, text, "an Ed25519 public key as 64 hexadecimal digits") from None


def signed_part(body: bytes) -> bytes:
    """The SHA-256 of a body, which is signed: 32 bytes."""
    return hashlib.sha256(body).digest()


def is_signed(key: bytes, body: bytes, signature: bytes) -> bool:
    """Whether the holder of the public `key` signed exactly `body`; signatures have 64 bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed_part(body))
    except InvalidSignature:
        return False
    return True
