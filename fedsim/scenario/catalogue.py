"""The scenarios that come with fedsim, by name; the folder `shipped` is the repository's `scenarios/`.

Beside them stand the schemas of their tables, `NAME.schema.yaml`, which are no scenarios.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedsim.common.errors import InputError, suggest
from fedsim.common.serialise import from_yaml

_FOLDER = Path(__file__).parent / "shipped"


def shipped() -> dict[str, Path]:
    """{name: file} of the scenarios that come with fedsim, sorted by name.

    >>> "quickstart" in shipped()
    True
    """
    files = [*_FOLDER.glob("*.yaml"), *_FOLDER.glob("thesis/*.yaml")]
    found = {path.stem: path for path in files if not path.stem.endswith(".schema")}
    return dict(sorted(found.items()))


def descriptions() -> dict[str, str]:
    """{name: what it shows} of the shipped scenarios."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in shipped().items()}
    return {name: from_yaml(text)["description"] for name, text in texts.items()}


def find(given: str | os.PathLike[str]) -> Path:
    """The file: a path, or the name of a shipped scenario; a file that exists wins. InputError if neither."""
    path, known = Path(given), shipped()
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path  # a path that is wrong is reported when it is read
    if path.name in known:
        return known[path.name]
    hint = f"is neither a file nor a shipped scenario; {suggest(given, known)}"
    raise InputError("scenario", str(given), hint)
