"""`make lock`: what each image installs: versions of constraints.txt, and hashes of their wheels for Linux.

No source distribution is among them, so that to build an image runs no other project's set-up. torch's CPU
build is not on PyPI: deploy/lock/torch.txt has it by hand, and here is what it requires.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ("silos", "server", "shuffler")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
PYTHON = "3.11"
BUILDS = "setuptools"
TORCH = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
"""What torch's CPU build requires."""


def main(uv: str) -> None:
    """Write deploy/lock/IMAGE.txt for each image."""
    for image in IMAGES:
        found: dict[str, set[str]] = {}
        for platform in PLATFORMS:
            for pin, hashes in _resolve(uv, image, platform).items():
                found.setdefault(pin, set()).update(hashes)
        lines = [
            " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes))])
            for pin, hashes in sorted(found.items())
        ]
        head = f"# Made by `make lock`: all but torch that {image}/Dockerfile installs."
        (ROOT / "deploy" / "lock" / f"{image}.txt").write_text("\n".join([head, *lines, ""]))


def _resolve(uv: str, image: str, platform: str) -> dict[str, list[str]]:
    """By `name==version`, the hashes of the wheels that fit a platform."""
    others = [BUILDS, *(TORCH if image != "shuffler" else ())]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "pylock.toml"
        options = ["--python-version", PYTHON, "--python-platform", platform, "--only-binary", ":all:"]
        options += ["--constraint", "constraints.txt", "--excludes", "deploy/lock/torch.txt"]
        options += ["--extra", "metrics", "--quiet", "--output-file", str(made)]
        command = [uv, "pip", "compile", f"{image}/pyproject.toml", "-", *options]
        subprocess.run(command, cwd=ROOT, input="\n".join(others), text=True, check=True)
        packages = tomllib.loads(made.read_text())["packages"]
    return {
        f"{each['name']}=={each['version']}": [wheel["hashes"]["sha256"] for wheel in each["wheels"]]
        for each in packages
    }


if __name__ == "__main__":
    main(sys.argv[1])
