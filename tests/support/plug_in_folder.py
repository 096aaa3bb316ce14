"""A folder of plug-ins as `pip install --target` leaves it: a module and its distribution's metadata."""

from pathlib import Path


def plug_in_folder(folder: Path, code: str, group: str = "fedsim.algorithms", **parts: str) -> Path:
    """Write the module `theirs` with this code, and entry points {name: class} of a group."""
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "theirs.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "".join(f"{name} = theirs:{kind}\n" for name, kind in parts.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}")
    return folder
