"""Let the nodes of a federation in at its SuperLink: `python -m fedsim.deployment.enroll federation.yaml`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.deployment.control import Control
from fedsim.deployment.federation_file import ROOT, load_federation
from fedsim.deployment.nodes import node_keys


def enroll(control: Control, keys: Mapping[str, bytes]) -> None:
    """Let in every silo's node by its key, {name: PEM}; those that are in already stay.

    Raises:
        InputError: the SuperLink cannot be reached.
    """
    for name, key in keys.items():
        control.register(key, name)


def main() -> int:
    """Exit code 2 with a line on stderr for what a person can mend."""
    try:
        federation = load_federation(Path(sys.argv[1]))
        if federation.superlink is None or federation.root_certificates is None:
            raise InputError(f"{ROOT}.superlink", federation.superlink, "and root_certificates are needed")
        with Control(federation.superlink, federation.root_certificates) as control:
            enroll(control, node_keys(federation))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"let in: {', '.join(federation.silos)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
