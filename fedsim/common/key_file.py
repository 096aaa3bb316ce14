"""Secret keys in files: 64 hexadecimal digits that their owner alone may read, and never replaced."""

from __future__ import annotations

import os
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file


def write_key(place: Path, secret: bytes, field: str) -> None:
    """Write a secret of 32 bytes, mode 0600.

    Raises:
        InputError: there is a key already; names `field`.
    """
    if place.exists():
        raise InputError(field, str(place), "there is a key already; it is never replaced")
    with whole_file(place) as draft:
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{secret.hex()}\n")


def read_key(place: Path, field: str) -> bytes:
    """The secret, 32 bytes.

    Raises:
        InputError: there is none, others may read it, or it is no key; names `field`, never what is in it.
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
