"""Nothing that was started outlives its block, and what ended says why."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from support.gone import gone

from fedsim.deployment.processes import Ended, Processes

SLEEP = "import time; time.sleep(600)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
other = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, other.pid, flush=True)
child.wait()
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def _said(log: Path) -> str:
    until = time.monotonic() + 60
    while not (text := log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    return text


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_children_and_theirs_end_with_the_block(error: type[BaseException] | None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    try:
        with Processes() as processes:
            pids = [
                processes.start("a family", _python(FAMILY), log).process.pid,
                *map(int, _said(log).split()),
            ]
            assert not any(map(gone, pids))
            if error:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert all(map(gone, pids))


def test_what_a_killed_child_leaves_behind_ends_too(tmp_path: Path) -> None:
    """Also what has a session of its own, as the processes have that a SuperLink starts."""
    log, other = tmp_path / "log", tmp_path / "other"
    with Processes() as bystanders:
        bystander = bystanders.start("another", _python("print('here', flush=True)\n" + SLEEP), other)
        _said(other)
        with Processes() as processes:
            leader = processes.start("a family", _python(FAMILY), log).process
            orphans = [int(pid) for pid in _said(log).split()]
            leader.kill()
            leader.wait()
            assert not any(map(gone, orphans))
        assert all(map(gone, orphans))
        assert bystander.process.poll() is None


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.deployment.processes.PATIENCE", 0.2)
    with Processes() as processes:
        child = processes.start("a deaf one", _python(DEAF + SLEEP), tmp_path / "log")
        _said(child.log)
    assert gone(child.process.pid)


def test_who_ended_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(
            "the daemon of silo-1", _python("print('no disk left'); raise SystemExit(3)"), tmp_path / "log"
        )
        child.process.wait()
        with pytest.raises(Ended, match=r"(?s)the daemon of silo-1 ended \(exit code 3\).*no disk left"):
            processes.check()
