"""A SuperLink as a process of this machine: TLS, and nodes known by their keys."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedsim.common.errors import InputError
from fedsim.common.process import undisturbed
from fedsim.deployment.flower.control import Control
from fedsim.deployment.processes import Child, end, start

START_SECONDS = 60.0


@dataclass(frozen=True)
class Credentials:
    """The server's files, as `fedsim certs` makes them."""

    root_certificates: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> Credentials:
        """Those of the folder `server`; InputError if one is missing."""
        credentials = cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        for file in (credentials.root_certificates, credentials.certificate, credentials.key):
            if not file.is_file():
                raise InputError("certificates", str(file), "a file; `fedsim certs` makes it")
        return credentials


def environment(home: Path) -> dict[str, str]:
    """Of every process of Flower's: its files in `home`; nothing fetched or reported, no slow polling."""
    scripts = str(Path(sys.executable).parent)  # a SuperLink starts its helpers by name
    return os.environ | {
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }


def command(credentials: Credentials, host: str, port: int, database: Path | None = None) -> list[str]:
    """The command that starts it; runs are its child processes, and install nothing.

    Without a `database` it forgets its nodes when it ends, and carries a round in half the time. (Its runs
    end with it in either case, and are taken up by a new one.)
    """
    return [
        str(Path(sys.executable).with_name("flower-superlink")),
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(credentials.root_certificates.resolve())),
        *("--ssl-certfile", str(credentials.certificate.resolve())),
        *("--ssl-keyfile", str(credentials.key.resolve())),
        "--enable-supernode-auth",
        *("--isolation", "subprocess"),
        "--disable-runtime-dependency-installation",
        *("--database", ":flwr-in-memory:" if database is None else str(database.resolve())),
    ]


class SuperLink:
    """A SuperLink that runs while the block does.

    Args:
        credentials: its certificate.
        folder: of its log, and of what Flower keeps of runs; made if need be.
        port: on which all of Flower's interfaces are.
        host: the address of this machine that it listens on.
    """

    def __init__(self, credentials: Credentials, folder: Path, port: int, host: str = "127.0.0.1") -> None:
        self._papers, self._folder, self._host, self._port = credentials, folder, host, port
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for processes of this machine."""
        return f"127.0.0.1:{self._port}" if self._host == "0.0.0.0" else f"{self._host}:{self._port}"

    @property
    def log(self) -> Path:
        """The log file of the SuperLink and of its runs."""
        return self._folder / "superlink.log"

    def control(self) -> Control:
        """A line to it."""
        return Control(self.address, self._papers.root_certificates)

    def start(self) -> None:
        """Start it, and wait until it answers; InputError with the reason if it does not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        environ = environment(self._folder / "flwr")
        self._child = start("the SuperLink", command(self._papers, self._host, self._port), self.log, environ)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        assert self._child is not None
        process = self._child.process
        deadline = time.monotonic() + START_SECONDS
        with self.control() as control:
            while not control.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                    raise InputError("superlink", self.address, f"one that starts; it said: {''.join(last)}")
                time.sleep(0.1)
            if process.poll() is not None:
                raise InputError("superlink", self.address, "a free port; another SuperLink answers there")

    def stop(self) -> None:
        """End it and what it started; another Ctrl-C does not cut it short."""
        if self._child is not None:
            with undisturbed():
                end(self._child)

    def kill(self) -> None:
        """End it as a power cut would; for tests."""
        assert self._child is not None
        self._child.process.kill()
        self._child.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
