"""Which version of fedsim is installed, the whole or one party's part."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata


def version() -> str:
    """Of the distribution that is installed; PackageNotFoundError if there is none."""
    for part in ("silo", "server", "shuffler"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(f"fedsim-{part}")
    return metadata.version("fedsim-isrl")
