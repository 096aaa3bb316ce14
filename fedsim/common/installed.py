"""Which version of fedsim is installed, whole or in part."""

from __future__ import annotations

from importlib import metadata

WHOLE = "fedsim-isrl"
PARTS = ("fedsim-silo", "fedsim-server", "fedsim-shuffler")
"""What one party installs; an environment has the whole or one of them."""


def version() -> str:
    """The version of the distribution that is installed; PackageNotFoundError if there is none."""
    for name in PARTS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return metadata.version(WHOLE)
