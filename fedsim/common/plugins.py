"""Parts that other distributions bring, found through their entry points.

An entry point runs code of this installation, as any import does; nothing is ever fetched, and no other
party can name one. Every process of the same environment finds the same ones. `pin` sees to it that the
packages beside `fedsim` are found where they were installed with it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from fedsim.common.errors import InputError

T = TypeVar("T")
_loads = True


def entry_points(group: str) -> dict[str, object]:
    """{name: object} of every entry point of the group, sorted by name; InputError names group, entry point
    and distribution where one does not load or two share a name.
    """
    found: dict[str, object] = {}
    for point in _points(group):
        if point.name in found:
            raise InputError(
                f"entry point {group}:{point.name}", point.value, f"{_origin(point)}: name taken twice"
            )
        try:
            found[point.name] = point.load()
        except Exception as error:
            hint = f"{_origin(point)}: cannot be loaded ({type(error).__name__}: {error})"
            raise InputError(f"entry point {group}:{point.name}", point.value, hint) from error
    return found


def extended(group: str, own: Mapping[str, type[T]], base: type[T]) -> dict[str, type[T]]:
    """`own` parts and those of the group's entry points; InputError as in `entry_points`, or where a name is
    built in or an object is no class derived from `base`.
    """
    parts, found = dict(own), entry_points(group)
    for point in _points(group):
        field, kind = f"entry point {group}:{point.name}", found[point.name]
        if point.name in own:
            raise InputError(field, point.value, f"{_origin(point)}: the name is built in; choose another")
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise InputError(
                field, point.value, f"{_origin(point)}: must be a class derived from {base.__name__}"
            )
        parts[point.name] = kind
    return parts


def listed(folder: Path) -> dict[str, dict[str, str]]:
    """{group: {name: "module:object"}} of fedsim's entry points in `folder`, as `pip install --target` fills
    it; imports nothing. InputError where two share a name.
    """
    found: dict[str, dict[str, str]] = {}
    for distribution in metadata.distributions(path=[str(folder)]):
        for point in distribution.entry_points:
            if not point.group.startswith("fedsim."):
                continue
            group = found.setdefault(point.group, {})
            if point.name in group:
                field = f"entry point {point.group}:{point.name}"
                raise InputError(field, point.value, f"{_origin(point)}: name taken twice")
            group[point.name] = point.value
    return found


def load_none() -> None:
    """Load no entry point in this process from now on: a daemon's plug-ins run in a child of their own."""
    global _loads
    _loads = False


def named(group: str) -> bool:
    """Whether the group has an entry point; loads none."""
    return bool(_points(group))


def _points(group: str) -> list[metadata.EntryPoint]:
    if not _loads:
        return []
    return sorted(metadata.entry_points(group=group), key=lambda point: (point.name, _origin(point)))


def _origin(point: metadata.EntryPoint) -> str:
    return f"distribution {point.dist.name}" if point.dist else "an unnamed distribution"


_ROOT = Path(__file__).parents[2]
_NAMES = ("server", "shuffler", "silos")


def pin() -> None:
    """Make `import server`, `shuffler` and `silos` find the packages that belong to this `fedsim`.

    Raises:
        ImportError: another module has one of the names already.
    """
    for name in _NAMES:
        place = getattr(sys.modules.get(name), "__file__", None)
        if place is not None and _ROOT not in Path(place).resolve().parents:
            raise ImportError(
                f"{place} was imported as {name!r}, which is the name of a package of fedsim: rename it"
            )
    if not any(type(finder).__name__ == _Beside.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside())


class _Beside(MetaPathFinder):
    """Finds what was installed with fedsim, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None leaves it to the others."""
        return PathFinder.find_spec(fullname, [str(_ROOT)]) if path is None and fullname in _NAMES else None
