"""A silo's Flower side: one resident process that carries frames between a SuperLink and the silo's daemon.

    python -m silos.shim --superlink HOST:PORT --root-certificates ca.crt --key node.key --socket silo.sock

It takes the place of Flower's own SuperNode, SuperExec and ClientApp processes, which fetch and run whatever
bundle of code the server side ships. This one runs none (`silos.shim.fleet`): it hands bytes to the daemon's
local socket and back. It holds no records, and a frame that it changed would not carry the silo's signature.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedsim.common.errors import InputError, Refused
from fedsim.common.section import settings
from fedsim.wire import flower as carried
from fedsim.wire.connections import MetricsAt
from fedsim.wire.dial import dial, read_token
from fedsim.wire.frames import receive, send
from fedsim.wire.logs import log_to
from fedsim.wire.metrics import Metric, exposed, info, single
from silos.shim.fleet import BEAT, FLWR_VERSION, Endpoint, Fleet, Rejected, Unreadable, Waiting

if TYPE_CHECKING:
    from silos.shim.fleet import Delivery

Dial = Callable[[], socket.socket]
PATIENCE = 3600.0  # seconds for one answer: a round of many queries takes its time


def dialler(unix: Path | None, port: int | None, token: Path | None) -> Dial:
    """How to reach a daemon: by its Unix socket, or by its port on this machine and the file of its token.
    InputError if neither or both are given, or the token cannot be read.
    """
    if unix is not None and port is None and token is None:
        return partial(dial, unix, PATIENCE)
    if unix is None and port is not None and token is not None:
        return partial(dial, (port, read_token(token)), PATIENCE)
    raise InputError("--socket", str(unix), "the daemon's socket, or --port and --token")


class DaemonAway(Exception):
    """The daemon does not listen, or closed the connection before it answered."""


class Caller:
    """One connection to a daemon, made anew when it broke."""

    def __init__(self, dial: Dial, limit: int) -> None:
        """`dial` makes a connection, ready for frames; a reply has `limit` bytes at most."""
        self._dial, self._limit = dial, limit
        self._connection: socket.socket | None = None

    def ask(self, frame: bytes) -> bytes:
        """The daemon's answer; asked twice where an old connection turns out to be dead. DaemonAway if there
        is none.
        """
        if self._connection is not None:
            try:
                return self._exchange(frame)
            except (OSError, Refused):
                self.close()  # the daemon was started anew since; the same frame gets the same reply
        try:
            self._connection = self._dial()
            return self._exchange(frame)
        except (OSError, Refused) as error:  # refused: a reply that is too long
            self.close()
            raise DaemonAway(str(error)) from error

    def _exchange(self, frame: bytes) -> bytes:
        assert self._connection is not None
        send(self._connection, frame)
        reply = receive(self._connection, self._limit)
        if reply is None:
            raise ConnectionError("the daemon closed the connection")
        return reply

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class NodeFile:
    """What a node remembers between its processes: its number at the SuperLink.

    A SuperLink refuses a key whose node is online, and takes a node that was killed for online for a minute.
    A new process that knows the number can say first that the old one is gone. The file is locked while a
    process lives, so that two processes with one key do not put each other out. A folder that cannot be
    written remembers nothing. InputError if another process holds it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self._handle = None
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError("--key", str(path), "a node that no other process runs") from None

    def read(self) -> int | None:
        """The number; None where there is none."""
        if self._handle is None:
            return None
        text = os.pread(self._handle, 32, 0).decode("ascii", "replace")
        return int(text) if text.isdecimal() and text.isascii() else None

    def write(self, node: int) -> None:
        """Remember the number."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(node).encode(), 0)


_BUSY, _IDLE = 0.2, 1.0  # seconds between two looks for a message: after one, and after long without
_SPARING = 20  # times what a look took, if that is longer: a slow SuperLink has other nodes to serve
_log = logging.getLogger("fedsim.node")
_carried: Counter[str] = Counter()  # messages, by what became of them
_known = threading.Event()  # set while the SuperLink knows this node


def serve(endpoint: Endpoint, daemon: Caller, memory: NodeFile) -> None:
    """Carry frames until interrupted (SystemExit, KeyboardInterrupt); then the node goes offline."""
    with Fleet(endpoint) as fleet:
        waiting = Waiting()
        while True:
            with _online(fleet, memory) as node:
                _log.info("node %d is online at %s", node, endpoint.superlink)
                _carry(fleet, node, daemon)
            waiting.wait("the SuperLink does not know this node any more")


@contextmanager
def _online(fleet: Fleet, memory: NodeFile) -> Iterator[int]:
    """This node online, with heartbeats, until the block ends."""
    node = _activate(fleet, memory)
    memory.write(node)
    _known.set()
    end = threading.Event()
    threading.Thread(target=_beat, args=(fleet, node, end), daemon=True).start()
    try:
        yield node
    finally:
        end.set()
        _known.clear()
        fleet.deactivate(node)


def _activate(fleet: Fleet, memory: NodeFile) -> int:
    waiting = Waiting()
    while True:
        if (earlier := memory.read()) is not None:
            fleet.deactivate(earlier)  # ours, and dead: this process holds its file
        try:
            return fleet.activate()
        except Rejected as error:
            why = f"not let in ({error}): its key is unknown, or its node still online"
        waiting.wait(why)


def _beat(fleet: Fleet, node: int, end: threading.Event) -> None:
    while not end.wait(BEAT):
        fleet.beat(node)


def _carry(fleet: Fleet, node: int, daemon: Caller) -> None:
    """Frames in, frames out, until the SuperLink no longer knows the node."""
    idle, spare = _BUSY, 0.0
    while True:
        begin = time.monotonic()
        try:
            there = fleet.deliveries(node)
            spare = _SPARING * (time.monotonic() - begin)
            for delivery in there:
                idle = _BUSY
                _answer(delivery, daemon)
        except Rejected:
            return
        except Exception as error:  # whatever a SuperLink sends, this process stays
            _log.warning("a message was dropped: %s: %.200s", type(error).__name__, error)
        time.sleep(min(max(idle, spare), _IDLE))
        idle = min(1.1 * idle, _IDLE)


def _answer(delivery: Delivery, daemon: Caller) -> None:
    try:
        reply = daemon.ask(delivery.frame())
    except DaemonAway as error:
        _carried["no_daemon"] += 1
        _log.warning("no daemon (%s)", error)
        delivery.refuse(carried.AWAY)
    except Unreadable as error:
        _carried["no_frame"] += 1
        _log.warning("no frame (%s)", error)
        delivery.refuse(carried.UNREADABLE)
    else:
        _carried["answered"] += 1
        delivery.answer(reply)


def _metrics() -> Iterator[Metric]:
    yield info()
    yield single("online", "1 while the SuperLink knows this node.", float(_known.is_set()))
    yield Metric("messages_total", "Messages of the SuperLink, by what became of them.", _carried, "outcome")


def run(
    superlink: str,
    root_certificates: Path,
    key: Path,
    socket: Path | None = None,
    port: int | None = None,
    token: Path | None = None,
    log: Path | None = None,
    metrics: int | None = None,
) -> None:
    """Be a silo's node until SIGTERM or SIGINT, by the arguments of the command line. InputError if one of
    them is wrong, another process is this node, or the port `metrics` is taken.

    Certificates are PEM, of the authority that signed the SuperLink's; the key is in OpenSSH's format, NIST
    P-384. The daemon is at a Unix `socket`, or at a loopback `port` with the file of its `token`.
    """
    if (found := version("flwr")) != FLWR_VERSION:
        raise InputError("flwr", found, f"version {FLWR_VERSION}, whose internals this uses")
    endpoint = Endpoint(superlink, _text(root_certificates, "--root-certificates"), private_key(key))
    daemon = Caller(dialler(socket, port, token), carried.MAX_FRAME)
    memory = NodeFile(key.with_name(f"{key.name}.node"))
    log_to(log, "")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves the blocks, which take the node offline
    at = None if metrics is None else settings(MetricsAt, {"port": metrics}, "--metrics")
    with exposed(at, "--metrics", _metrics), suppress(KeyboardInterrupt):
        serve(endpoint, daemon, memory)


def _text(file: Path, field: str) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, ValueError) as error:
        raise InputError(field, str(file), f"a file that can be read ({type(error).__name__})") from None


def private_key(file: Path) -> EllipticCurvePrivateKey:
    """A node's private key; InputError if the file holds none."""
    try:
        key = load_ssh_private_key(_text(file, "--key").encode(), None)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):  # its content must not be shown
        raise InputError("--key", str(file), "a node's private key, as `fedsim certs` makes it")
    return key


def main() -> None:
    """Command line of `python -m silos.shim`."""
    parser = argparse.ArgumentParser("python -m silos.shim", description="A silo's node in Flower.")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--root-certificates", required=True, type=Path, metavar="FILE")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="the node's private key")
    parser.add_argument("--socket", type=Path, metavar="FILE", help="the daemon's socket")
    parser.add_argument("--port", type=int, help="the daemon's port on 127.0.0.1; with --token")
    parser.add_argument("--token", type=Path, metavar="FILE")
    parser.add_argument("--log", type=Path, metavar="FILE", help="for its log, beside stderr")
    parser.add_argument("--metrics", type=int, metavar="PORT", help="of 127.0.0.1, for Prometheus")
    try:
        run(**vars(parser.parse_args()))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
