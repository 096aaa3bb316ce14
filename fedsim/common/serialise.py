"""YAML as people write it, with errors that name the file and the line; and canonical JSON.

Canonical JSON is one text for equal values, to compare and to hash settings by; it has no infinity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from fedsim.common.errors import InputError


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number (YAML 1.1 wants a dot in it) and a key stands once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes a text that the loader would read as a number in quotes."""


for each in (_Loader, _Dumper):
    each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("+-.0123456789")
    )


def to_yaml(tree: Any, **style: Any) -> str:
    """YAML that `from_yaml` reads back as it was; `style` is what `yaml.dump` takes.

    >>> from_yaml(to_yaml({"label": "1e3"}))
    {'label': '1e3'}
    """
    written: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, **style)
    return written


def from_yaml(text: str) -> Any:
    """Parse a YAML text; yaml.YAMLError if it is none."""
    return yaml.load(text, _Loader)


def mapping(path: Path, field: str, example: str, files: Iterable[str] = ()) -> dict[str, Any]:
    """The mapping in a YAML file; InputError on `field` if it is unreadable, invalid or holds something else.

    `example` is a section that it may have, such as `data:`. The dotted fields `files` hold names of files,
    which are made relative to this file's folder; `*` is any key, and a field may hold a list of names.
    """
    try:
        tree = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(field, str(path), f"cannot be read ({reason})") from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"line {mark.line + 1}: " if mark else ""
        twice = isinstance(error, yaml.constructor.ConstructorError) and "stands twice" in str(error.problem)
        said = error.problem if twice else "not valid YAML"  # type: ignore[attr-defined]
        raise InputError(field, str(path), f"{where}{said}") from None
    if not isinstance(tree, dict):
        raise InputError(field, str(path), f"must hold a mapping of sections such as `{example}`")
    places = [file.split(".") for file in files]
    return dict(_anchored(tree, path.resolve().parent, places)) if places else tree


def _anchored(tree: Any, folder: Path, files: Sequence[Sequence[str]]) -> Any:
    """`files` are the places below this part of the tree."""
    if isinstance(tree, dict):
        below = {key: [file[1:] for file in files if file and file[0] in ("*", key)] for key in tree}
        return {key: _anchored(value, folder, below[key]) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_anchored(value, folder, files) for value in tree]
    return str(folder / tree) if isinstance(tree, str) and [] in files else tree


def canonical(value: Any) -> str:
    """JSON that is the same for equal values; 1 and 1.0 are equal numbers.

    >>> canonical({"b": 1.0, "a": (True, None)})
    '{"a":[true,null],"b":1}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in (str, int) else _plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def finite(value: float | None) -> float | None:
    """None for infinity, which JSON cannot say, and for None."""
    return value if value is not None and isfinite(value) else None
