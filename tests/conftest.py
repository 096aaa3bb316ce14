"""Settings and run directories that tests of several rooms share."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.scenarios import SMALL, simulate

from fedsim.report import page

torch.set_num_threads(1)

# No test asserts a speed, and a busy machine fails none.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def plug_ins_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that loads no plug-ins says so for its process, which is also that of later tests."""
    monkeypatch.setattr("fedsim.common.plugins._loads", True)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: read it, do not change it."""
    return simulate(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    """One to damage."""
    return Path(shutil.copytree(small_run, tmp_path / "copy"))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run stays empty and has no figures, which take longer than small runs."""
    monkeypatch.setattr(page, "_fill", lambda *_: None)
