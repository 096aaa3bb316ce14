"""The `roster` service of docker-compose.yml: the roster that its parties' public keys make.

Between organisations the silos' operators write it together, and each compares its digest with the others'.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from fedsim.common.durable import atomic_file
from fedsim.secagg.roster import load_roster, parse_roster


def main(place: Path, server: Path, shuffler: Path, silos: dict[str, Path]) -> None:
    """Write the roster to `place`, unless there is one, of public keys in the parties' folders; print its
    digest."""
    told = {
        "federation": "compose demo",
        "silos": {name: _read(folder / "identity.pub") for name, folder in silos.items()},
        "server": _read(server / "envelopes.pub"),
        "shuffler": {"key": _read(shuffler / "envelopes.pub"), "identity": _read(shuffler / "identity.pub")},
        "min_silos": len(silos),
        "honest_fraction": 1.0,
    }
    if not place.exists():
        with atomic_file(place) as draft:
            draft.write_text(yaml.safe_dump(parse_roster(told).model_dump(mode="json"), sort_keys=False))
            draft.chmod(0o444)
    print(load_roster(place).digest)


def _read(path: Path) -> str:
    if not path.exists():
        sys.exit(f"error: {path}: is not there; enrol {path.parent.name} first")
    return path.read_text().strip()


if __name__ == "__main__":
    folders = {name: Path(folder) for name, _, folder in (word.partition("=") for word in sys.argv[2:])}
    main(Path(sys.argv[1]), folders.pop("server"), folders.pop("shuffler"), folders)
