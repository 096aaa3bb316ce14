"""Silos that tests enrol, start as processes of their own, kill and start again.

A daemon here is forked from a process that has imported everything: it runs the service that
`python -m silos` runs, and starts in a tenth of a second.
"""

import io
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import yaml
from support.breaking import kill_at_write

from fedsim.common.errors import InputError, Refused
from fedsim.wire.dial import listens
from silos.front.config import load_config
from silos.front.enrolment import enrol

PATIENCE = 60.0
CLASSES, FEATURES = 2, 3
LIFETIME = {"epsilon": 8.0, "delta": 1e-5, "expires": "2099-12-31"}

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["silos.front.service", "support.daemons"])


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short paths; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="silos-", dir="/tmp") as made:
        yield Path(made)


def write_silo(
    folder: Path, name: str = "silo-1", n: int = 40, features: int = FEATURES, **more: Any
) -> Path:
    """A silo's own folder in `folder`, with records made from its name; its file. It is not enrolled.

    Args:
        folder: of all silos.
        name: of this one.
        n: records.
        features: of a record, without the intercept.
        more: fields of the policy; `listen` and `insecure_simulation` are those of the file.
    """
    home = folder / name
    home.mkdir(mode=0o700)
    rng = np.random.default_rng([ord(letter) for letter in name])
    x = rng.normal(size=(n, features))
    np.savez(home / "records.npz", features=x, target=(x[:, 0] > 0).astype(np.int64))
    file = {
        "name": name,
        "records": {"name": "npz", "path": "records.npz", "classes": CLASSES},
        "state": "state",
        "listen": more.pop("listen", {"socket": "silo.sock"}),
    }
    if "insecure_simulation" in more:
        file["insecure_simulation"] = more.pop("insecure_simulation")
    file["policy"] = {"lifetime": LIFETIME, **more}
    (home / "silo.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return home / "silo.yaml"


def enrolled_silo(folder: Path, name: str = "silo-1", **more: Any) -> Path:
    """See `write_silo`; enrolled in this process."""
    file = write_silo(folder, name, **more)
    enrol(load_config(file))
    return file


def enrolment_killed_at(file: Path, write: int) -> bool:
    """Enrol in a process that dies before its write of this number; whether it came so far."""
    process = _fork.Process(target=_enrol, args=(file, write))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


class Listener:
    """Listens on a socket; every connection is served in a thread."""

    def __init__(self, path: Path, serve: Callable[[socket.socket], None]) -> None:
        self.path, self._serve = path, serve
        self.connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._threads.append(threading.Thread(target=self._one, args=(connection,)))
            self._threads[-1].start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        self.path.unlink()


class Daemon:
    """An enrolled party's daemon, which may be started any number of times.

    Args:
        file: its settings.
        socket: a name beside the file, where it listens.
        serve: runs in its process, with the file, the file of its stderr and `before`.
    """

    def __init__(self, file: Path, socket: str, serve: Callable[..., None]) -> None:
        self.file, self.home, self.name = file, file.parent, file.parent.name
        self.socket, self.said = self.home / socket, self.home / "stderr"
        self._serve = serve
        self.process: BaseProcess | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def start(self, before: Callable[[], None] | None = None, wait: bool = True) -> Self:
        """Start it, and wait until it listens.

        Args:
            before: is called in the new process first, to break something there; a function that pickles.
            wait: until it listens; AssertionError with what it said if it ended instead.
        """
        assert self.process is None or not self.process.is_alive()
        self.process = _fork.Process(target=self._serve, args=(self.file, self.said, before))
        self.process.start()
        if wait:
            self.until_it_listens()
        return self

    def until_it_listens(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.listens():
            assert self.process is not None
            assert self.process.is_alive(), f"{self.name} ended: {self.said.read_text()}"
            assert time.monotonic() < until, f"{self.name} does not listen"
            time.sleep(0.005)

    def until_it_says(self, words: str) -> None:
        until = time.monotonic() + PATIENCE
        while not self.said.exists() or words not in self.said.read_text():
            assert time.monotonic() < until, f"{self.name} does not say {words!r}"
            time.sleep(0.005)

    def listens(self) -> bool:
        return listens(self.socket, PATIENCE)

    def wait(self) -> int:
        """Its exit code, once it has ended; negative for a signal."""
        assert self.process is not None
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"{self.name} does not end"
        return self.process.exitcode

    def stop(self) -> int:
        """SIGTERM."""
        assert self.process is not None
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            self.wait()


class Silo(Daemon):
    """An enrolled silo's daemon; `insecure` starts it with --insecure-simulation."""

    def __init__(self, file: Path, insecure: bool = False) -> None:
        super().__init__(file, "silo.sock", partial(_serve, insecure=insecure))

    @property
    def ledger(self) -> Path:
        return self.home / "state" / "ledger.sqlite"

    @property
    def identity(self) -> bytes:
        """Its public key, 32 bytes."""
        return bytes.fromhex((self.home / "state" / "identity.pub").read_text().strip())


@contextmanager
def daemons(*files: Path, insecure: bool = False, start: bool = True) -> Iterator[dict[str, Silo]]:
    """Daemons by name, started together; whatever still runs at the end is killed."""
    made = {silo.name: silo for silo in (Silo(file, insecure) for file in files)}
    try:
        if start:
            for silo in made.values():
                silo.start(wait=False)
            for silo in made.values():
                silo.until_it_listens()
        yield made
    finally:
        for silo in made.values():
            silo.kill()


@contextmanager
def running_silos(count: int, insecure: bool = False, **more: Any) -> Iterator[dict[str, Silo]]:
    """New silos silo-1 ... of their own folder, enrolled and started; see `write_silo`."""
    with short_folder() as folder:
        files = [enrolled_silo(folder, f"silo-{i + 1}", **more) for i in range(count)]
        with daemons(*files, insecure=insecure) as made:
            yield made


def as_program(name: str, main: Callable[[], int], *options: str) -> tuple[int, str]:
    """Exit code and stderr of `python -m NAME`, in this process."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        patch.setattr(sys, "argv", [name, *options])
        mask = os.umask(0o022)
        try:
            return main(), said.getvalue()
        finally:
            os.umask(mask)


def _enrol(file: Path, write: int) -> None:
    kill_at_write(write)
    enrol(load_config(file))


def entered(said: Path, before: Callable[[], None] | None) -> None:
    """What a daemon's process begins with."""
    with said.open("a") as stream:
        os.dup2(stream.fileno(), 2)
    if before is not None:
        before()


def _serve(file: Path, said: Path, before: Callable[[], None] | None, insecure: bool) -> None:
    entered(said, before)
    from silos.front.service import run  # what a warm process has ready, and a test's own has no need of

    try:
        code = run(file, enrol_first=False, serve=True, health=False, insecure_simulation=insecure)
    except (InputError, Refused) as error:
        os.write(2, f"{error}\n".encode())
        code = 2
    sys.exit(code)
