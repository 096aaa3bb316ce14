"""A silo as a service of the operating system: started from its file, stopped by a signal, asked how it is."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedsim.common.errors import Refused
from fedsim.protocol.dial import dial_port, dial_socket, read_token
from fedsim.protocol.messages import Greeting, Hello, Refusal
from fedsim.protocol.wire import MAX_HEAD, Frame, encode, head_of, opened, receive, sealed, send
from silos.config import Listen, SiloFile, load
from silos.daemon import Bounds, Daemon
from silos.listener import at_port, at_socket
from silos.log import begin
from silos.silo import Silo

_ARRAYS = 4
"""Arrays of the largest dimension in a broadcast; the algorithms here send at most two."""
_HEALTHY_WITHIN = 5.0  # seconds

log = logging.getLogger("silos.service")


def serve(file: Path, insecure_simulation: bool) -> int:
    """Answer until SIGTERM or SIGINT; what is in hand then is finished.

    Returns:
        The exit code, 0.

    Raises:
        InputError: the silo's file, or something it names, is not as it must be.
        Refused: the silo may not answer: its ledger, its records or its policy are not those of its enrolment.
    """
    os.umask(0o077)
    torch.set_num_threads(1)  # sums depend on it, and many silos may share a machine in tests
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # nothing is in hand yet
    config = load(file)
    token = read_token(config.listen.token) if config.listen.token else b""
    begin(config.state / "log")
    with Silo.open(config, insecure_simulation) as silo, _listening(config.listen) as listener:
        bounds = Bounds(frame_bytes=MAX_HEAD + _ARRAYS * 8 * config.policy.max_dimension)
        finished = _until_signal(Daemon(silo, listener, bounds, token))
    log.info("stopped")
    if not finished:  # a thread is still at work: its round is debited, and may be asked for again
        os._exit(0)
    return 0


def _until_signal(daemon: Daemon) -> bool:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    log.info("listening")
    return daemon.run()


@contextmanager
def _listening(listen: Listen) -> Iterator[socket.socket]:
    with at_socket(listen.socket) if listen.socket else at_port(listen.port) as listener:
        yield listener


def health(file: Path) -> int:
    """Ask the running daemon who it is; the exit code: 0 if it says so, else 1 with a line on stderr.

    Raises:
        InputError: the silo's file is not as it must be.
    """
    config = load(file)
    try:
        with _dialled(config) as connection:
            send(connection, sealed(encode(Frame(Hello.kind, Hello().model_dump()))))
            answer = receive(connection, MAX_HEAD)
        kind, head = head_of(opened(answer or b"")[0])
    except (OSError, Refused) as error:
        kind, head = Refusal.kind, {"reason": str(error)}
    if kind != Greeting.kind:
        print(f"silo {config.name}: {head.get('reason')}", file=sys.stderr)
    return int(kind != Greeting.kind)


def _dialled(config: SiloFile) -> socket.socket:
    listen = config.listen
    if listen.socket:
        return dial_socket(listen.socket, _HEALTHY_WITHIN)
    return dial_port(listen.port, read_token(listen.token), _HEALTHY_WITHIN)
