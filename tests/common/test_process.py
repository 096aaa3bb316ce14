"""Packages beside `fedsim` are found, whatever a user's folder holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedsim
from fedsim.common.process import pin

ROOT = Path(fedsim.__file__).parents[1]


def test_a_users_server_and_silos_are_not_ours(tmp_path: Path) -> None:
    for name in ("server", "silos"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another module ran')\n")
    code = (
        "import sys; sys.path.insert(0, ''); import fedsim; "
        "import server, silos; print(server.__file__, silos.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(ROOT / name / "__init__.py") for name in ("server", "silos")]


def test_a_module_that_took_the_name_before_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("server")
    module.__file__ = "/home/somebody/server.py"
    monkeypatch.setitem(sys.modules, "server", module)
    with pytest.raises(ImportError, match=r"/home/somebody/server.py was imported as 'server'.*rename it"):
        pin()


def test_it_is_pinned_once() -> None:
    before = list(sys.meta_path)
    pin()
    assert sys.meta_path == before
