"""The shuffler as a service of the system: started from its file, stopped by a signal, asked how it is."""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from fedsim.common import installed
from fedsim.common.errors import InputError, Refused
from fedsim.secagg.shuffling import Request, Shuffle, ShufflerGreeting
from fedsim.wire import service
from fedsim.wire.connections import listening, token_of
from fedsim.wire.daemon import Bounds, Daemon
from fedsim.wire.frames import head_of, opened, sealed
from fedsim.wire.health import check
from fedsim.wire.logs import log_to
from fedsim.wire.messages import Hello, Message, Refusal
from fedsim.wire.metrics import answers, exposed, info
from shuffler.config import ROOT, Config, load_config
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.store import FileStore

_REQUESTS = 4  # servers', and a health check's; each may be held in memory
_BROKEN = "the shuffler could not answer (see its log)"

log = logging.getLogger("shuffler")


def run(file: Path, *, enrolling: bool, health: bool) -> int:
    """What `python -m shuffler` and `fedsim shuffler` do; the exit code. InputError if the shuffler's file,
    or something that it names, is not as it must be, Refused if what it has noted cannot be used.
    """
    os.umask(0o077)
    config = load_config(file)
    if enrolling:
        print(json.dumps(enrol(config)))
        return 0
    if health:
        return check(config.listen.address, ShufflerGreeting.kind, "shuffler")
    return _serve(config)


def enrol(config: Config) -> dict[str, Any]:
    """Draw its keys and begin its notes; returns both public keys, as a roster has them. InputError if it has
    keys or notes already, Refused if nothing can be written there.
    """
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if config.notes.exists():
        raise InputError(f"{ROOT}.state", str(config.state), "is enrolled already (start it without --enrol)")
    keys = Keys.create(config.state)
    FileStore.create(config.notes, keys.identity.public)
    return keys.public.model_dump()


class FrameHandler:
    """Frames in, frames out; whatever goes wrong is a refusal, and signed as everything is."""

    def __init__(self, shuffler: Shuffler) -> None:
        self._shuffler = shuffler

    def answer(self, frame: bytes) -> bytes:
        """See `fedsim.wire.daemon.Answers`."""
        try:
            body, _ = opened(frame)
            kind, head = head_of(body)
            if kind == Hello.kind:
                keys, rosters = self._shuffler.keys.public, tuple(self._shuffler.rosters)
                told = {"key": keys.key, "identity": keys.identity, "rosters": rosters}
                mark = self._shuffler.mark(str(head.get("head", "")))
                return self._said(ShufflerGreeting(**told, version=installed.version(), mark=mark))
            if kind == Shuffle.kind:
                return self._shuffler.shuffle(Request.read(body))
            raise Refused("not a message that a shuffler takes")
        except Refused as refusal:
            return self._said(Refusal.of(refusal))
        except Exception as error:  # its text may hold something of a report
            log.error("%s", type(error).__name__)
            return self._said(Refusal(reason=_BROKEN))

    def tend(self) -> bool:
        """See `fedsim.wire.daemon.Answers`."""
        return not self._shuffler.store.failed

    def _said(self, message: Message) -> bytes:
        body = message.body()
        return sealed(body, self._shuffler.keys.identity.sign(body))


def _serve(config: Config) -> int:
    """Answer until SIGTERM or SIGINT, or a write fails; what is in hand then is finished."""
    service.end_at_signal()  # nothing is in hand yet
    token, keys = token_of(config.listen), Keys.load(config.state)
    log_to(config.state / "log", "shuffler", "fedsim.wire")
    with (
        closing(FileStore.open(config.notes, keys.identity.public)) as store,
        listening(config.listen) as listener,
    ):
        shuffler = Shuffler(config.load_rosters(), keys, store)
        bounds = Bounds(config.max_request, requests=_REQUESTS, answers=1)
        daemon = Daemon(FrameHandler(shuffler), listener, bounds, token)
        for digest, roster in shuffler.rosters.items():
            log.info("roster %s of %s: %d silos", digest, roster.federation, len(roster.names))
        with exposed(config.metrics, f"{ROOT}.metrics", lambda: [info(), answers(daemon.answered)]):
            log.info("the shuffler listens")
            finished = service.serve(daemon)
    log.info("the shuffler has stopped")
    return service.stopped(daemon, finished)
