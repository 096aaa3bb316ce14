"""A deployment that lost what it waits for says so: SuperExec, ServerApp, port, certificate."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from support.deployed import SCENARIO
from support.flower import free_port, short_folder, until

from fedsim.common.errors import InputError, Refused
from fedsim.deployment import certs
from fedsim.deployment.flower import submit as submitting
from fedsim.deployment.flower import superlink
from fedsim.deployment.flower.submit import Job, Line, submit
from fedsim.deployment.flower.superlink import SuperLink, credentials
from fedsim.deployment.processes import Ended, Processes, finish, over

BREAKS = """
import os, sys
if any({word!r} in each for each in sys.orig_argv[:3]):
    os.write(2, b"broken on purpose\\n")
    os._exit(3)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        certs.make(made, ["silo-1"])
        yield made


@contextmanager
def broken(folder: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> Iterator[SuperLink]:
    """A SuperLink of whose processes one, by its name, ends as it starts."""
    (folder / "sitecustomize.py").write_text(BREAKS.format(word=word))
    more = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(more))
    with SuperLink(credentials(folder / "server"), folder / "superlink", free_port()) as made:
        yield made


def job(folder: Path) -> Job:
    return Job("breast_cancer", (), folder / "federation.yaml", folder / "out", False)


EXEC = """#!{python}
import subprocess, sys, time
for seconds in sys.argv[1:]:
    subprocess.Popen([{app!r}, seconds])
time.sleep(600)
"""
APP = "#!{python}\nimport sys, time\ntime.sleep(float(sys.argv[1]))\n"


@pytest.mark.parametrize("lives", [("0", "600"), ("0", "0")])
def test_a_run_does_not_end_with_another_of_its_superlink(
    lives: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was given to it by `--superlink`: its ServerApp ends, and this run's goes on."""
    program, app = tmp_path / "flower-superexec", tmp_path / "flwr-serverapp"
    program.write_text(EXEC.format(python=sys.executable, app=str(app)))
    app.write_text(APP.format(python=sys.executable))
    for file in (program, app):
        file.chmod(0o700)
    helped = subprocess.CompletedProcess((), 0)
    with Processes() as processes:
        words = [sys.executable, "-c", f"import subprocess; subprocess.run({[str(program), *lives]})"]
        child = processes.start("a SuperLink", words, tmp_path / "log")
        family = psutil.Process(child.process.pid)
        until(lambda: sum(map(over, family.children(recursive=True))) == lives.count("0"))
        monkeypatch.setattr(superlink.subprocess, "run", lambda *words, **more: helped)
        if "600" in lives:
            superlink.check_helpers(child)
        else:
            with pytest.raises(Ended, match="the run's process was ended from outside"):
                superlink.check_helpers(child)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"),
    [("flower-superexec", "SuperExec, which starts runs, has ended"), ("flwr-serverapp", "does not start")],
)
def test_a_process_of_flowers_that_dies_at_its_start_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, word: str, said: str
) -> None:
    with broken(folder, monkeypatch, word) as made, made.watched() as control:
        with pytest.raises(Ended, match=said) as caught:
            submit(control, job(folder), {}, 1, lambda line: None)
        assert "broken on purpose" in str(caught.value)


@pytest.mark.slow
def test_a_superlink_elsewhere_that_starts_nothing_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "SLOW", 1.0)
    monkeypatch.setattr(submitting, "NEVER", 4.0)
    told: list[Line] = []
    with (
        broken(folder, monkeypatch, "flower-superexec") as made,
        made.control() as control,
        pytest.raises(Refused, match=r"has not begun the run: its SuperExec, .*; not after 4 s"),
    ):
        submit(control, job(folder), {}, 1, told.append)
    assert [line.text.split(" has not begun")[0] for line in told] == [made.address]


def deploy(folder: Path, address: str, scenario: Path) -> subprocess.Popen[str]:
    (folder / "silo-1" / "identity.pub").write_text("0" * 64)
    silos = {"silo-1": {"identity": "silo-1/identity.pub", "node": "silo-1/node.pub"}}
    tree = {"silos": silos, "superlink": address, "root_certificates": "server/ca.crt", "patience": 1}
    (folder / "federation.yaml").write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "fedsim.cli.main", "deploy", str(scenario), "--out", str(folder / "out")]
    return subprocess.Popen(
        [*command, "--federation", str(folder / "federation.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def scenario(folder: Path) -> Path:
    (folder / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO))
    return folder / "scenario.yaml"


def test_a_port_that_another_program_has_is_named_at_once(folder: Path, scenario: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
            process = deploy(folder, address, scenario)
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 2, said
            assert "a port that is free" in " ".join(said.split())
            assert "A SuperLink runs" not in said


@pytest.mark.slow
def test_a_certificate_for_another_host_is_said_and_what_starts_runs_is_there(
    folder: Path, scenario: Path
) -> None:
    process = deploy(folder, f"192.0.2.1:{free_port()}", scenario)
    said, _ = process.communicate(timeout=300)
    told = " ".join(said.split())
    assert "server.crt is not for 192.0.2.1" in told
    assert "waiting for silo-1 to join" in told
    assert process.returncode == 2


@pytest.mark.slow
def test_a_certificate_that_is_not_for_this_machine_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certs, "LOCAL", ("fl.example.org",))
    certs.make(tmp_path, ["silo-1"])
    start = time.monotonic()
    made = SuperLink(credentials(tmp_path / "server"), tmp_path / "superlink", free_port())
    with pytest.raises(
        Ended, match=r"SuperExec, which starts runs, has ended.*(\n.*)*CERTIFICATE_VERIFY_FAILED"
    ):
        made.__enter__()
    assert time.monotonic() - start < superlink.START_SECONDS


def test_another_superlinks_answer_is_not_taken_for_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that start at once both find the port free."""
    monkeypatch.setattr(superlink, "check_port", lambda host, port: None)
    papers = credentials(folder / "server")
    with SuperLink(papers, folder / "first", free_port()) as first:
        second = SuperLink(papers, folder / "second", int(first.address.rpartition(":")[2]))
        with pytest.raises(InputError, match="one that starts; its log ends"):
            second.__enter__()


def sleeping(seconds: float, code: int) -> Sequence[str]:
    return [
        sys.executable,
        "-c",
        f"import sys, time; time.sleep({seconds}); print('slept'); sys.exit({code})",
    ]


def test_one_enrolment_that_fails_does_not_wait_for_the_others(tmp_path: Path) -> None:
    with pytest.raises(Ended, match="second ended"):
        finish({"first": (sleeping(200, 0), tmp_path / "a"), "second": (sleeping(0, 3), tmp_path / "b")})
    assert [(tmp_path / name).read_text() for name in "ab"] == ["", "slept\n"]
    finish({"first": (sleeping(0, 0), tmp_path / "a")})
