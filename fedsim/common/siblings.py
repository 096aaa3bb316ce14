"""The packages beside this one (`server`, `shuffler`, `silos`), whatever else a folder holds by these names.

A notebook, `python -m` and a process of Ray look for modules first in the folder that they were started
in, and people have a server.py there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]
_NAMES = ("server", "shuffler", "silos")


def pin() -> None:
    """From here on `import server`, `shuffler` and `silos` find the packages that belong to this `fedsim`.

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


def hiding(folder: Path) -> Path | None:
    """A file of the folder that would be taken for a library that is in use, where the folder comes first."""
    for name, module in list(sys.modules.items()):
        if "." in name or name in sys.stdlib_module_names or name in (*_NAMES, "__main__", "conftest"):
            continue
        place = vars(module).get("__file__")
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if place is not None and file.is_file() and not file.samefile(place):
                return file
    return None
