"""Let the nodes of a federation in at its SuperLink: `python -m fedsim.deployment.enroll federation.yaml`."""

from __future__ import annotations

import sys
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.deployment.control import Control
from fedsim.deployment.federation_file import ROOT, Federation, load_federation
from server.node_keys import node_key


def enroll(control: Control, federation: Federation) -> None:
    """Let in every silo's node by its key; those that are in already stay.

    Raises:
        InputError: a silo has no node, its key cannot be read, or the SuperLink cannot be reached.
    """
    for name, silo in federation.silos.items():
        if silo.node is None:
            raise InputError(f"{ROOT}.silos.{name}.node", None, "the file of its node's public key")
        control.register(node_key(silo.node), name)


def main() -> int:
    """Exit code 2 with a line on stderr for what a person can mend."""
    try:
        federation = load_federation(Path(sys.argv[1]))
        if federation.superlink is None or federation.root_certificates is None:
            raise InputError(f"{ROOT}.superlink", federation.superlink, "and root_certificates are needed")
        with Control(federation.superlink, federation.root_certificates) as control:
            enroll(control, federation)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"let in: {', '.join(federation.silos)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
