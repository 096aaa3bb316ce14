"""A SuperLink, nodes and stand-ins for daemons, as processes and threads of this machine."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.daemons import Listener
from support.daemons import short_folder as short_folder

from fedsim.deployment import certs
from fedsim.deployment.flower.control import Control
from fedsim.deployment.flower.superlink import SuperLink, credentials
from fedsim.deployment.flower.superlink import environment as superlink_environment
from fedsim.deployment.node_keys import node_key
from fedsim.wire.frames import receive, send

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def echo(place: Path, reply: Callable[[bytes], bytes] = lambda frame: frame[::-1]) -> Iterator[None]:
    """Where a daemon would listen: answers each frame by `reply`."""

    def serve(connection: socket.socket) -> None:
        while (frame := receive(connection, 2**30)) is not None:
            send(connection, reply(frame))

    listener = Listener(place, serve)
    try:
        yield
    finally:
        listener.stop()


class Node:
    """A silo's node, a process."""

    def __init__(self, superlink: str, credentials: Path, daemon: Path, log: Path) -> None:
        self._command = [sys.executable, "-m", "silos.shim", "--superlink", superlink]
        self._command += [
            "--root-certificates",
            str(credentials / "ca.crt"),
            "--key",
            str(credentials / "node.key"),
        ]
        self._command += ["--socket", str(daemon)]
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


def environment() -> dict[str, str]:
    """Of processes that import the product and `support`."""
    places = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places)}


class LastingSuperLink:
    """A SuperLink with a database, which a supervisor starts again: it knows its nodes and runs then."""

    def __init__(self, folder: Path, papers: Path, address: str) -> None:
        self._folder, host, port = folder, *address.split(":")
        self._command = [str(Path(sys.executable).with_name("flower-superlink")), "--host", host]
        self._command += ["--port", port, "--enable-supernode-auth", "--isolation", "subprocess"]
        self._command += ["--disable-runtime-dependency-installation", "--database", str(folder / "links.db")]
        for option, name in (
            ("ca-certfile", "ca.crt"),
            ("certfile", "server.crt"),
            ("keyfile", "server.key"),
        ):
            self._command += [f"--ssl-{option}", str(papers / name)]

    def start(self) -> None:
        own = superlink_environment(self._folder / "flwr") | {"PYTHONPATH": environment()["PYTHONPATH"]}
        with (self._folder / "lasting.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=own,
                start_new_session=True,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Federation:
    """A SuperLink with nodes, in a folder."""

    def __init__(self, folder: Path, silos: Sequence[str], port: int | None = None) -> None:
        self.folder, self.silos = folder, tuple(silos)
        certs.make(folder / "credentials", silos)
        self.credentials = folder / "credentials"
        self.superlink = SuperLink(
            credentials(self.credentials / "server"), folder / "superlink", port or free_port()
        )
        self.nodes: dict[str, Node] = {}
        self.keys = {name: node_key(self.credentials / name / "node.pub") for name in silos}

    def control(self) -> Control:
        return self.superlink.control()

    def register(self) -> None:
        with self.control() as control:
            for name, key in self.keys.items():
                control.register(key, name)

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def join(self, name: str, daemon: Path | None = None) -> Node:
        place = daemon or self.socket(name)
        log = self.folder / f"{name}.log"
        self.nodes[name] = Node(self.superlink.address, self.credentials / name, place, log)
        return self.nodes[name]

    def wait_online(self, names: Sequence[str] | None = None, seconds: float = 60.0) -> None:
        wanted = {self.keys[name] for name in names or self.silos}
        with self.control() as control:
            until(lambda: wanted <= {key for key, at in control.nodes().items() if at == "online"}, seconds)


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


@contextmanager
def federation(folder: Path, silos: Sequence[str]) -> Iterator[Federation]:
    """Running: the SuperLink, every node's key registered, every node started."""
    made = Federation(folder, silos)
    with ExitStack() as stack:
        stack.enter_context(environment_set())
        stack.enter_context(made.superlink)
        made.register()
        for name in silos:
            made.join(name)
        stack.callback(lambda: [node.kill() for node in made.nodes.values()])
        yield made


@contextmanager
def environment_set() -> Iterator[None]:
    """For child processes that take this process's environment."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
