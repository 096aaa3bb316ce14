"""A silo as a service of the system: started from its file, stopped by a signal, asked how it is."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import torch

from fedsim.common.errors import InputError, Refused
from fedsim.protocol.dial import dial_port, dial_socket, read_token
from fedsim.protocol.messages import Greeting, Hello
from fedsim.protocol.wire import MAX_HEAD, Frame, encode, head_of, opened, receive, sealed, send
from silos.config import ROOT, AtPort, AtSocket, Config, load_config
from silos.daemon import Bounds, Daemon
from silos.enrolment import enrol
from silos.listener import at_port, at_socket
from silos.log import begin
from silos.silo import Silo

_ARRAYS = 4
"""Arrays of the largest dimension in a broadcast; fedsim's own algorithms send two at most."""
_HEALTHY_WITHIN = 5.0  # seconds

log = logging.getLogger("silos.service")


def run(file: Path, *, enrol_first: bool, serve: bool, health: bool, insecure_simulation: bool) -> int:
    """What `python -m silos` and `fedsim silo` do; the exit code.

    Args:
        file: the silo's configuration.
        enrol_first: make the silo's ledger and identity.
        serve: after that, listen too; without `enrol_first` a daemon always does.
        health: ask the running daemon instead.
        insecure_simulation: allow seeded noise.

    Raises:
        InputError: the silo's file, or something that it names, is not as it must be.
        Refused: the silo may not answer, or its ledger cannot be used.
    """
    os.umask(0o077)
    config = load_config(file)
    if enrol_first:
        print(json.dumps(asdict(enrol(config))), flush=True)
        if not serve:
            return 0
    return _ask(config) if health else _serve(config, insecure_simulation)


def _serve(config: Config, insecure_simulation: bool) -> int:
    """Answer until SIGTERM or SIGINT; what is in hand then is finished."""
    torch.set_num_threads(1)  # sums depend on it, and each silo has a process
    _on_signal(lambda *_: sys.exit(0))  # nothing is in hand yet
    token = read_token(config.listen.token) if isinstance(config.listen, AtPort) else b""
    if not config.ledger.exists():
        raise InputError(
            f"{ROOT}.state", str(config.state), "has no ledger; start the silo once with --enrol"
        )
    begin(config.state / "log")
    bounds = Bounds(frame_bytes=MAX_HEAD + _ARRAYS * 8 * config.policy.max_dimension)
    with closing(Silo.open(config, insecure_simulation)) as silo, _listening(config.listen) as listener:
        daemon = Daemon(silo, listener, bounds, token)
        _on_signal(lambda *_: daemon.stop())
        log.info("silo %s listens", config.name)
        finished = daemon.run()
    log.info("silo %s has stopped", config.name)
    if not finished:  # a thread is still at work; its round is paid for, and can be asked for again
        os._exit(0)
    return 0


def _on_signal(act: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, act)


def _listening(listen: AtSocket | AtPort) -> AbstractContextManager[socket.socket]:
    return at_socket(listen.socket) if isinstance(listen, AtSocket) else at_port(listen.port)


def _ask(config: Config) -> int:
    """Whether the running daemon says who it is: 0, else 1 and a line on stderr."""
    try:
        with _dialled(config.listen) as connection:
            send(connection, sealed(encode(Frame(Hello.kind, Hello().model_dump()))))
            kind, head = head_of(opened(receive(connection, MAX_HEAD) or b"")[0])
    except (OSError, Refused) as error:
        kind, head = "", {"reason": error}
    if kind != Greeting.kind:
        print(f"silo {config.name}: {head.get('reason')}", file=sys.stderr)
    return int(kind != Greeting.kind)


def _dialled(listen: AtSocket | AtPort) -> socket.socket:
    if isinstance(listen, AtSocket):
        return dial_socket(listen.socket, _HEALTHY_WITHIN)
    return dial_port(listen.port, read_token(listen.token), _HEALTHY_WITHIN)
