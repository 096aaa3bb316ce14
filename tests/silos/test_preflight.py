"""A silo's machine is checked before it is enrolled: each fault is found, and named."""

import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from fedsim.deployment import certs
from silos.front.preflight import Check, of_daemon, of_node

SILO = """name: north
records: {name: npz, path: records.npz, classes: 2}
state: state
listen: {socket: run/silo.sock}
policy: {lifetime: {epsilon: 8.0, delta: 1.0e-5, expires: EXPIRES}}
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "silo.yaml").write_text(SILO.replace("EXPIRES", "2999-12-31"))
    (tmp_path / "records.npz").touch()
    for name in ("silo.yaml", "records.npz"):
        (tmp_path / name).chmod(0o600)
    return tmp_path


def failed(checks: Iterable[Check], *, but: str = "disk") -> list[str]:
    """What is not as it must be; the disk of a machine of tests may be anything."""
    return [check.what for check in checks if not check.good and check.what != but]


def test_what_is_as_it_must_be(place):
    assert failed(of_daemon(place / "silo.yaml")) == []


def test_each_fault_of_files(place):
    file = place / "silo.yaml"
    (place / "records.npz").chmod(0o644)
    assert failed(of_daemon(file)) == ["mode path"]
    (place / "records.npz").unlink()
    assert failed(of_daemon(file)) == ["mode path"]
    (place / "records.npz").touch(0o600)
    (place / "state").mkdir()
    (place / "state").chmod(0o770)
    assert "mode state" in failed(of_daemon(file))
    (place / "state").chmod(0o700)
    (place / "run").rmdir()
    assert failed(of_daemon(file)) == ["socket"]
    (place / "run").mkdir()
    file.write_text(SILO.replace("EXPIRES", "2020-01-01"))
    assert failed(of_daemon(file)) == ["last day"]
    file.write_text("name: north")
    assert failed(of_daemon(file)) == ["silo.yaml"]


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory")
def test_a_ledger_in_memory_is_refused(place):
    folder = Path(f"/dev/shm/preflight-{os.getpid()}")
    try:
        shutil.copytree(place, folder)
        assert failed(of_daemon(folder / "silo.yaml"), but="") == ["disk"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def asked(folder: Path, days: int, skew: int) -> list[Check]:
    """The node's checks of a server whose certificate ends in so many days and whose clock is ahead."""
    certs.make(folder, ["north"], days=days)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
    now = format_datetime(datetime.now(UTC) + timedelta(seconds=skew))

    def answer(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain:
            try:
                with context.wrap_socket(plain, server_side=True) as line:
                    line.recv(1000)
                    line.sendall(f"HTTP/1.1 404 Not Found\r\nDate: {now}\r\n\r\n".encode())
            except (ssl.SSLError, ConnectionError):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        address, own = f"127.0.0.1:{listener.getsockname()[1]}", folder / "north"
        found = list(of_node(address, own / "ca.crt", own / "node.key"))
        thread.join(5)
    return found


def test_the_way_to_the_server(tmp_path):
    fine, own = tmp_path / "fine", tmp_path / "fine" / "north"
    assert failed(asked(fine, 90, 0)) == []
    assert failed(asked(tmp_path / "soon", 3, 0)) == ["certificate"]
    assert failed(asked(tmp_path / "ahead", 90, 600)) == ["clock"]
    assert failed(of_node("127.0.0.1:1", own / "ca.crt", own / "node.key")) == ["network"]
    assert failed(of_node("127.0.0.1:x", own / "ca.crt", own / "node.key")) == ["network"]
    assert "node's key" in failed(of_node("127.0.0.1:1", own / "ca.crt", own / "ca.crt"))
    certs.make(tmp_path / "other", ["north"])
    (own / "ca.crt").unlink()
    shutil.copy(tmp_path / "other" / "north" / "ca.crt", own)
    assert failed(asked(fine, 90, 0)) == ["network"]
