"""Processes forked from one that is warm: as if each had been started alone, random numbers included."""

import json
import sys
import time

import pytest

from fedsim.deployment.processes import Ended, Processes, marked

ONE = """
import signal, sys, time

def main():
    print(*sys.argv[1:], flush=True)
    if sys.argv[1] == "fails":
        sys.exit("no disk left")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(600)
"""
DRAWS = """
import json, time
import numpy as np
from fedsim.privacy.discrete_noise import with_noise
from silos.vault.entropy import Purpose, SystemEntropy, new_secret

def main():
    stream = SystemEntropy(b"1" * 32).streams([0], 0, Purpose.NOISE)[0]
    exact = with_noise(np.zeros(16, np.int64), 1e6)
    print(json.dumps([new_secret().hex(), stream.normal(size=4).tolist(), exact.tolist()]), flush=True)
    time.sleep(600)
"""


def _command(tmp_path, monkeypatch, source, processes, module="theirs"):
    (tmp_path / "theirs.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    each = [json.dumps([name, str(tmp_path / name), words]) for name, words in processes.items()]
    return [sys.executable, "-m", "fedsim.deployment.forked", module, *each]


def _until(condition):
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def test_each_has_its_arguments_and_its_log_and_all_end_together(tmp_path, monkeypatch):
    given = {name: ["--name", name] for name in ("one", "two")}
    command, logs = _command(tmp_path, monkeypatch, ONE, given), [tmp_path / name for name in given]
    with Processes() as processes:
        child = processes.start("all of them", command, tmp_path / "log")
        _until(lambda: all(log.exists() and log.read_text() == f"--name {log.name}\n" for log in logs))
    assert child.process.returncode == 0


def test_a_signal_that_comes_between_two_forks_ends_all_of_them(tmp_path, monkeypatch):
    comes = "import os\nos.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
    command = _command(tmp_path, monkeypatch, ONE + comes, {name: [name] for name in ("one", "two")})
    with Processes() as processes:
        child = processes.start("all of them", command, tmp_path / "log")
        assert child.process.wait(60) == 0
        assert not list(marked(child.mark))


def test_the_one_that_ended_is_named_and_the_others_end(tmp_path, monkeypatch):
    command = _command(tmp_path, monkeypatch, ONE, {"one": ["stays"], "two": ["fails"]})
    with Processes() as processes:
        child = processes.start("all of them", command, tmp_path / "log")
        child.process.wait(60)
        with pytest.raises(Ended, match=r"(?s)\(exit code 1\).*two ended \(exit code 1\).*no disk left"):
            processes.check()


def test_no_two_draw_the_same_numbers(tmp_path, monkeypatch):
    """Of the system's secrets, of a stream of floating-point noise, and of exact noise."""
    given, logs = dict.fromkeys("abcd", ()), [tmp_path / name for name in "abcd"]
    command = _command(tmp_path, monkeypatch, DRAWS, given, "theirs,silos.front.service")
    with Processes() as processes:
        processes.start("all of them", command, tmp_path / "log")
        _until(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
    for kind in zip(*(json.loads(log.read_text()) for log in logs), strict=True):
        assert len({json.dumps(each) for each in kind}) == len(logs)
