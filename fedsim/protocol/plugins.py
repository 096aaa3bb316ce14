"""What other installed distributions add to fedsim: the entry points of a group.

An entry point runs code of this installation, as any import does; nothing is ever fetched, and no other
party can name one. Every process of the same environment finds the same ones.
"""

from __future__ import annotations

from importlib import metadata

from fedsim.protocol.errors import InputError


def entry_points(group: str) -> dict[str, object]:
    """{name: the object it loads} for every entry point of `group`, sorted by name.

    Raises:
        InputError: one does not load, or two have the same name; names group, name and distribution.
    """
    found: dict[str, object] = {}
    owners: dict[str, str] = {}
    for point in sorted(metadata.entry_points(group=group), key=lambda point: (point.name, point.value)):
        field = f"entry point {group}: {point.name}"
        owner = point.dist.name if point.dist else "an unnamed distribution"
        if point.name in found:
            raise InputError(field, owner, f"another name: {owners[point.name]} has registered this one")
        try:
            found[point.name] = point.load()
        except Exception as error:  # whatever importing someone else's module may raise
            reason = f"{point.value} does not load: {type(error).__name__}: {error}"
            raise InputError(field, owner, f"{reason}; mend or uninstall it") from error
        owners[point.name] = owner
    return found
