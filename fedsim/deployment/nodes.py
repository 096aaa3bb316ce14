"""The nodes of a federation's silos, by their pinned keys."""

from __future__ import annotations

from fedsim.common.errors import InputError
from fedsim.deployment.federation_file import Federation
from server.node_keys import node_key


def node_keys(federation: Federation) -> dict[str, bytes]:
    """Every silo's node's public key, PEM, by the silo's name.

    Raises:
        InputError: a silo has none, its file is wrong, or two silos have the same.
    """
    keys: dict[str, bytes] = {}
    for name, silo in federation.silos.items():
        field = f"federation.silos.{name}.node"
        if silo.node is None:
            raise InputError(field, None, "file of the public key of its Flower node")
        key = node_key(silo.node)
        if key in keys.values():
            raise InputError(field, str(silo.node), "is another silo's node too")
        keys[name] = key
    return keys
