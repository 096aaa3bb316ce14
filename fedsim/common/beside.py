"""The packages beside `fedsim` are found where they were installed with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]
_NAMES = ("server", "shuffler", "silos")


def module_file(name: str) -> str | None:
    """The file of a module that has been imported; None where it has none, or has not been."""
    return getattr(sys.modules.get(name), "__file__", None)


def pin() -> None:
    """Make `import server`, `shuffler` and `silos` find the packages that belong to this `fedsim`.
    ImportError if another module has one of the names already.
    """
    for name in _NAMES:
        place = module_file(name)
        if place is not None and _ROOT not in Path(place).resolve().parents:
            named = f"{place} was imported as {name!r}"
            raise ImportError(f"{named}, which is the name of a package of fedsim: rename it")
    if not any(type(finder).__name__ == _Beside.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside())


class _Beside:
    """Finds what was installed with fedsim, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None leaves it to the others."""
        return PathFinder.find_spec(fullname, [str(_ROOT)]) if path is None and fullname in _NAMES else None
