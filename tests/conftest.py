"""Settings and run directories that tests of several rooms share."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure
from support.scenarios import SMALL, simulate

from fedsim.report import style

torch.set_num_threads(1)

# No test asserts a speed, and a busy machine fails none.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def plug_ins_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that loads no plug-ins says so for its process, which is also that of later tests."""
    monkeypatch.setattr("fedsim.common.plugins._loads", True)


@pytest.fixture(autouse=True)
def files_are_readable() -> Iterator[None]:
    """A command that runs a daemon hides its process's new files from others, and those of later tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose sockets have short paths."""
    from support.daemons import short_folder

    with short_folder() as made:
        yield made


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: read it, do not change it."""
    return simulate(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    """One to damage."""
    return Path(shutil.copytree(small_run, tmp_path / "copy"))


BLANK = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'


def _blank(_: Figure, folder: Path, stem: str) -> str:
    for ending in ("png", "svg"):
        (folder / f"{stem}.{ending}").write_text(BLANK)
    return BLANK


@pytest.fixture
def drawn() -> None:
    """A test that asks for this looks at figures of runs, whose drawing takes longer than small runs."""


@pytest.fixture(autouse=True)
def figures_are_blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except in runs of fixtures that several tests share."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(style, "save", _blank)
        monkeypatch.setattr(style, "markup", lambda figure, stem: BLANK)
