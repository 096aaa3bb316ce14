"""Parts that other distributions bring, found through their entry points, and those of a user's file.

An entry point runs code of this installation, as any import does; nothing is ever fetched, and no other
party can name one. Every process of the same environment finds the same ones.

The name `my.py:MyAlgorithm` stands for a class in one file, which imports none of its neighbours: its SHA-256
says which code ran. A process reads a file once, until `forget_files`, so that an edit does not reach a run
that has begun.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from fedsim.common.errors import InputError, Refused

if TYPE_CHECKING:  # `importlib.metadata` takes longer to load than a health check may
    from importlib.metadata import EntryPoint

T = TypeVar("T")
_loads = True


def entry_points(group: str) -> dict[str, object]:
    """{name: object} of every entry point of the group, sorted by name; InputError names group, entry point
    and distribution where one does not load or two share a name.
    """
    found: dict[str, object] = {}
    for point in _points(group):
        if point.name in found:
            raise _wrong(point, "name taken twice")
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise _wrong(point, f"cannot be loaded ({type(error).__name__}: {error})") from error
    return found


def extended(group: str, own: Mapping[str, type[T]], base: type[T]) -> Mapping[str, type[T]]:
    """`own` parts and those of the group's entry points; InputError as in `entry_points`, or where a name is
    built in or an object is no class derived from `base`.
    """
    if not named(group):
        return own
    parts, found = dict(own), entry_points(group)
    for point in _points(group):
        kind = found[point.name]
        if point.name in own:
            raise _wrong(point, "the name is built in; choose another")
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise _wrong(point, f"must be a class derived from {base.__name__}")
        parts[point.name] = kind
    return parts


def listed(folder: Path) -> dict[str, dict[str, str]]:
    """{group: {name: "module:object"}} of fedsim's entry points in `folder`, as `pip install --target` fills
    it; imports nothing. InputError where two share a name.
    """
    from importlib import metadata

    found: dict[str, dict[str, str]] = {}
    for distribution in metadata.distributions(path=[str(folder)]):
        for point in distribution.entry_points:
            if not point.group.startswith("fedsim."):
                continue
            group = found.setdefault(point.group, {})
            if point.name in group:
                raise _wrong(point, "name taken twice")
            group[point.name] = point.value
    return found


def load_none() -> None:
    """Load no entry point in this process from now on: a daemon's plug-ins run in a child of their own."""
    global _loads
    _loads = False


def named(group: str) -> bool:
    """Whether the group has an entry point; loads none."""
    return bool(_points(group))


def _points(group: str) -> list[EntryPoint]:
    if not _loads:
        return []
    from importlib import metadata

    return sorted(metadata.entry_points(group=group), key=lambda point: (point.name, _origin(point)))


def _origin(point: EntryPoint) -> str:
    return f"distribution {point.dist.name}" if point.dist else "an unnamed distribution"


def _wrong(point: EntryPoint, hint: str) -> InputError:
    return InputError(f"entry point {point.group}:{point.name}", point.value, f"{_origin(point)}: {hint}")


_NAMED = re.compile(r"(.+\.py)(?::(\w*))?")


def file_of(name: object) -> str | None:
    """The file in a name such as my.py:MyAlgorithm or my.py; None where it names no file.

    >>> file_of("code/my.py:MyAlgorithm"), file_of("prox_sgd")
    ('code/my.py', None)
    """
    found = _NAMED.fullmatch(name) if isinstance(name, str) else None
    return found[1] if found else None


def short(name: str) -> str:
    """A name to show, without the folder of the file in it; any other name as it is.

    >>> short("/home/me/my.py:MyAlgorithm"), short("prox_sgd")
    ('my.py:MyAlgorithm', 'prox_sgd')
    """
    return Path(name).name if file_of(name) else name


@cache
def source(file: str, field: str) -> bytes:
    """What a file held when this process first read it; InputError on `field` if it cannot be read."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InputError(field, file, f"cannot be read ({error.strerror})") from None


def forget_files() -> None:
    """Read files again when they are next named."""
    source.cache_clear()


def digest(file: str, field: str) -> str:
    """SHA-256 of `source`, 64 hexadecimal digits."""
    from hashlib import sha256

    return sha256(source(file, field)).hexdigest()


def class_of(name: str, field: str, fits: Callable[[object], bool], kind: str) -> type:
    """The class that a name such as my.py:MyAlgorithm stands for; the only one that `fits`, in words a
    `kind`, where the file's name stands alone. InputError on `field` if the file cannot be read or imported,
    or holds no such class, or several; Refused if this process loads no code of others.
    """
    file, _, attribute = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    module = module_of(file, field)
    known = {key: each for key, each in vars(module).items() if fits(each)}
    own = {key: each for key, each in known.items() if each.__module__ == module.__name__}
    found = [attribute] if attribute in known else [] if attribute else list(own)
    if len(found) != 1:
        listed = ", ".join(f"{Path(file).name}:{each}" for each in own)
        hint = f"name one of {listed}" if own else f"the file holds no {kind}"
        raise InputError(field, short(name), hint)
    chosen: type = known[found[0]]
    return chosen


def module_of(file: str, field: str) -> ModuleType:
    """A file as a module; errors as of `class_of`."""
    if not _loads:
        raise Refused(f"{short(file)}: code of a file runs in a confined process, and not in this one")
    content = digest(file, field)
    try:
        return _module(file, content)
    except (Exception, SystemExit) as error:
        from traceback import extract_tb

        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == file]
        where = f", line {lines[-1]}" if lines else ""
        missing = isinstance(error, ImportError)
        left = "; install it: a file's neighbours are not on its path" if missing else ""
        hint = f"cannot be imported ({type(error).__name__}: {error}{where}){left}"
        raise InputError(field, short(file), hint) from error


@cache
def _module(file: str, digest: str) -> ModuleType:
    """The file as a module of a name that nothing else has."""
    module = ModuleType(f"{Path(file).stem}_{digest[:12]}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source(file, ""), file, "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module
