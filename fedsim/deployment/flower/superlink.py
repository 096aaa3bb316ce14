"""A SuperLink as a process of this machine: TLS, and nodes known by their keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Self

import psutil

from fedsim.common.errors import InputError
from fedsim.deployment.flower.control import Control, Status
from fedsim.deployment.processes import Child, Ended, Processes, over

START_SECONDS = 60.0
_LOG = "superlink.log"
_LAST_LINES, _LAST = 4, 200  # of a log; characters of an error
_EXEC, _APP = "flower-superexe", "flwr-serverapp"  # names of processes have 15 characters


ROOT, CERTIFICATE, _KEY = "ca.crt", "server.crt", "server.key"


def credentials(folder: Path) -> Path:
    """The folder `server` with the files of `fedsim certs`; InputError if one is missing."""
    for file in (folder / name for name in (ROOT, CERTIFICATE, _KEY)):
        if not file.is_file():
            raise InputError("certificates", str(file), "a file; `fedsim certs` makes it")
    return folder


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


def start(processes: Processes, papers: Path, folder: Path, host: str, port: int) -> Child:
    """Start one with `papers`, its `credentials`, among `processes`; `folder` has its log, and what Flower
    keeps of runs.

    Runs are its child processes, and install nothing. Without a database it forgets its nodes when it ends,
    and carries a round in half the time. (Its runs end with it in either case, and a new one takes them up.)
    """
    command = [
        str(Path(sys.executable).with_name("flower-superlink")),
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str((papers / ROOT).resolve())),
        *("--ssl-certfile", str((papers / CERTIFICATE).resolve())),
        *("--ssl-keyfile", str((papers / _KEY).resolve())),
        "--enable-supernode-auth",
        *("--isolation", "subprocess"),
        "--disable-runtime-dependency-installation",
        *("--database", ":flwr-in-memory:"),
    ]
    return processes.start("the SuperLink", command, folder / _LOG, environment(folder / "flwr"))


class Watched(Control):
    """A line to a SuperLink of this machine that looks after its processes whenever it is asked how it is;
    Ended, besides, as `check` does.
    """

    def __init__(self, address: str, root_certificates: Path, check: Callable[[], None]) -> None:
        super().__init__(address, root_certificates)
        self._check = check

    def nodes(self) -> dict[bytes, str]:
        """As `Control.nodes`."""
        self._check()
        return super().nodes()

    def status(self, run: int) -> Status:
        """As `Control.status`; a run that is over may have ended its process."""
        try:
            self._check()
        except Ended:
            with suppress(InputError):
                if (status := super().status(run)).over:
                    return status
            raise
        return super().status(run)


def check_port(host: str, port: int) -> None:
    """InputError if another program listens there."""
    with closing(socket.socket()) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            hint = f"a port that is free ({error.strerror}); perhaps another `fedsim deploy` has it"
            raise InputError("superlink", f"{host}:{port}", hint) from None


def check_helpers(child: Child) -> None:
    """Ended if a SuperLink has ended, or its SuperExec, which starts runs, or a ServerApp, a run's process;
    with what they said last.
    """
    if child.process.poll() is not None:
        raise child.ended()
    dead = _dead(child.process.pid)
    if dead == _EXEC:
        hint = f"which starts runs, has ended; its log {child.log} ends:{said(child.log)}"
        raise Ended(f"{child.name}'s SuperExec, {hint}")
    if dead == _APP:
        program = str(Path(sys.executable).with_name(_APP))  # Flower throws away what it prints
        tried = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
        why = "was ended from outside, perhaps for want of memory"
        if tried.returncode:
            why = f"does not start; {program} says: {' '.join(tried.stderr.split())[-_LAST:]}"
        raise Ended(f"the run's process {why}")


def said(log: Path) -> str:
    """The last lines of a SuperLink's log that are not of requests, each after a line break."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in lines if line.strip() and "INFO" not in line][-_LAST_LINES:]
    return "".join(f"\n  {line}" for line in told) or "\n  (nothing)"


def _dead(pid: int) -> str:
    """What has ended: the SuperExec, never replaced, or all ServerApps that it has started; else empty. Where
    one still runs, one that has ended may be that of a run which others have given to this SuperLink.
    """
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid).children()
        there = [*first, *(each for own in first for each in own.children())]
        for name in (_EXEC, _APP):
            found = [over(each) for each in there if each.name().startswith(name)]
            if found and all(found):
                return name
    return ""


class SuperLink:
    """A SuperLink that runs while the block does, with all of Flower's interfaces on one port of `host`.

    `folder`, made if need be, has its log, and what Flower keeps of runs.
    """

    _child: Child

    def __init__(self, papers: Path, folder: Path, port: int, host: str = "127.0.0.1") -> None:
        self._papers, self._folder, self._host, self._port = papers, folder, host, port

    @property
    def address(self) -> str:
        """HOST:PORT for processes of this machine."""
        return f"127.0.0.1:{self._port}" if self._host == "0.0.0.0" else f"{self._host}:{self._port}"

    @property
    def log(self) -> Path:
        """The log file of the SuperLink and of its runs."""
        return self._folder / _LOG

    def control(self) -> Control:
        """A line to it."""
        return Control(self.address, self._papers / ROOT)

    def watched(self) -> Watched:
        """A line to it for its one run."""
        return Watched(self.address, self._papers / ROOT, partial(check_helpers, self._child))

    def __enter__(self) -> Self:
        """Start it, and wait until it answers; InputError with the reason if it does not, Ended if its
        SuperExec has died, as of a certificate that is not for this machine.
        """
        check_port(self._host, self._port)
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            processes = stack.enter_context(Processes())
            self._child = start(processes, self._papers, self._folder, self._host, self._port)
            self._wait()
            self._stack = stack.pop_all()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with self.control() as control:
            while not (self._listens() and control.answers()):
                if self._child.process.poll() is not None or time.monotonic() > deadline:
                    hint = f"one that starts; its log ends:{said(self.log)}"
                    raise InputError("superlink", self.address, hint)
                check_helpers(self._child)
                time.sleep(0.1)

    def _listens(self) -> bool:
        """Whether it is this one that has the port, and no other's SuperLink."""
        with suppress(psutil.Error):
            found = psutil.Process(self._child.process.pid).net_connections("tcp")
            return any(each.status == psutil.CONN_LISTEN and each.laddr.port == self._port for each in found)
        return False

    def __exit__(self, *_: object) -> None:
        """End it and what it started; another Ctrl-C does not cut it short."""
        self._stack.close()
