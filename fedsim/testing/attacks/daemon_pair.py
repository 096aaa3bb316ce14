"""Two daemons that differ in one record, asked the same in step: a server's frames, and nothing else.

They are daemons that listen already, or new ones on this machine with fresh ledgers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

import torch
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.testing.attacks.neighbours import SOCKET, STATE, WORLDS, Line, Neighbours, write
from fedsim.testing.attacks.setting import Setting
from fedsim.wire.dial import listens
from fedsim.wire.frames import Frame, decode, opened, sealed
from fedsim.wire.messages import (
    Admission,
    Ask,
    Close,
    Closed,
    Greeting,
    Hello,
    Message,
    Offer,
    Refusal,
    Reply,
)
from server.federation import Channel
from server.sockets import Sockets
from silos.front.config import load_config
from silos.front.enrolment import enrol

_M = TypeVar("_M", bound=Message)


class Worlds:
    """Daemons of some worlds, by their names on the channel: each method says the same to all of them.

    Whatever is asked: Refused if a daemon refuses, or says something else; InputError if it does not answer.
    """

    def __init__(self, channel: Channel, names: Sequence[str] = WORLDS, deadline: float = 60.0) -> None:
        self._channel, self._deadline = channel, deadline
        self._heads = dict.fromkeys(names, "")

    def alone(self, name: str) -> Worlds:
        """One of the daemons alone."""
        return Worlds(self._channel, [name], self._deadline)

    def greet(self) -> list[Greeting]:
        """Who they are."""
        return self._all([Hello()] * len(self._heads), Greeting)[0]

    def offer(self, offer: Offer, session: str | None = None) -> list[Admission]:
        """A run in each world, a new one unless its session is named."""
        named = offer.model_copy(update={"session": session or token_hex(32)})
        return self._all([named] * len(self._heads), Admission)[0]

    def ask(self, runs: Sequence[str], round_index: int, broadcast: Mapping[str, Tensor]) -> list[Frame]:
        """The replies of a round."""
        return self._all([Ask(run=run, round=round_index, head="") for run in runs], Reply, broadcast)[1]

    def close(self, runs: Sequence[str]) -> list[Closed]:
        """The runs are over."""
        return self._all([Close(run=run, head="") for run in runs], Closed)[0]

    def says(self, message: Message, arrays: Mapping[str, Tensor] | None = None) -> bytes:
        """The first daemon's reply to any message, without its signature."""
        return self._exchange([message], arrays or {})[0]

    def _all(
        self, messages: Sequence[Message], kind: type[_M], arrays: Mapping[str, Tensor] | None = None
    ) -> tuple[list[_M], list[Frame]]:
        frames = [decode(body) for body in self._exchange(messages, arrays or {})]
        for frame in frames:
            if frame.kind == Refusal.kind:
                raise Refused(Refusal.model_validate(frame.head).reason)
            if frame.kind != kind.kind:
                raise Refused(f"a daemon answered with a {frame.kind}, not a {kind.kind}")
        heard = [kind.model_validate(frame.head) for frame in frames]
        for world, frame in zip(self._heads, frames, strict=True):
            self._heads[world] = frame.head["head"]
        return heard, frames

    def _exchange(self, messages: Sequence[Message], arrays: Mapping[str, Tensor]) -> list[bytes]:
        asked = dict(zip(self._heads, messages, strict=False))
        frames = {
            world: sealed(message.model_copy(update={"head": self._heads[world]}).body(arrays))
            for world, message in asked.items()
        }
        replies = self._channel.exchange(frames, self._deadline)
        for world in asked:
            if world not in replies:
                raise InputError("daemon", world, f"a daemon that answers within {self._deadline:g} s")
        return [opened(replies[world])[0] for world in asked]


OPTION = "--daemons"


class Runs:
    """Runs of the same lines, `count` in number, with daemons that admit each run on equal terms."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines, self.count = lines, 0
        self._admission: Admission | None = None
        self._answers: list[list[list[Tensor]]] = [[[] for _ in lines] for _ in WORLDS]

    @property
    def admission(self) -> Admission:
        """The daemons' first admission, with their claim."""
        assert self._admission is not None
        return self._admission

    def fill(self, worlds: Worlds, offer: Offer, wanted: int, done: Callable[[int], None]) -> Refused | None:
        """Run until there are `wanted` runs; the refusal, if a daemon refuses before."""
        while self.count < wanted:
            try:
                self._run_once(worlds, offer)
            except Refused as refusal:
                return refusal
            done(self.count)
        return None

    def answers(self, world: int) -> list[Tensor]:
        """The answers to each line, (runs, d)."""
        return [torch.stack(rows) for rows in self._answers[world]]

    def _run_once(self, worlds: Worlds, offer: Offer) -> None:
        """One more run; a run that is broken off leaves nothing."""
        admissions = worlds.offer(offer)
        self._admission = self._admission or admissions[0]
        for admission in admissions:
            if _terms(admission) != _terms(self._admission):
                hint = f"two daemons of one policy: another run was admitted by {_terms(self._admission)}"
                raise InputError(OPTION, _terms(admission), hint)
        runs = [admission.run for admission in admissions]
        heard = [worlds.ask(runs, line.round, line.broadcast) for line in self._lines]
        worlds.close(runs)
        for at, (line, frames) in enumerate(zip(self._lines, heard, strict=True)):
            for world, frame in zip(self._answers, frames, strict=True):
                world[at].append(frame.arrays[line.name].double().reshape(-1))
        self.count += 1


def _terms(admission: Admission) -> dict[str, object]:
    return admission.model_dump(exclude={"run", "head", "session"})


Openings = Iterable[AbstractContextManager[Worlds]]
"""Pairs of daemons, each with a lifetime budget of its own; the next is opened when one is spent."""
COMMAND = [sys.executable, "-m", "silos"]
_PATIENCE = 120.0  # seconds for a daemon to listen, or to end
_CONNECT = 5.0  # seconds for a connection


def daemons(setting: Setting, found: Neighbours, folder: Path) -> Openings:
    """The daemons that listen in `folder`, once; otherwise new ones there, each pair with a lifetime budget.
    InputError if only one of the two listens, or a daemon cannot be started.
    """
    sockets = [folder / world / SOCKET for world in WORLDS]
    listening = [listens(socket, _CONNECT) for socket in sockets]
    if all(listening):
        yield _opened(sockets)
        return
    if any(listening):
        raise InputError(OPTION, str(folder), "daemons in both world-0 and world-1, or in neither")
    while True:
        yield _started(write(setting, found, folder))


@contextmanager
def _opened(sockets: list[Path]) -> Iterator[Worlds]:
    with Sockets(dict(zip(WORLDS, sockets, strict=True))) as channel:
        yield Worlds(channel)


@contextmanager
def _started(configs: list[Path]) -> Iterator[Worlds]:
    """Daemons with new ledgers, which end with the block."""
    with ExitStack() as stack:
        for config in configs:
            shutil.rmtree(config.parent / STATE, ignore_errors=True)
            enrol(load_config(config))
        running = [stack.enter_context(_process(config)) for config in configs]
        for config, process in zip(configs, running, strict=True):
            until = time.monotonic() + _PATIENCE
            while not listens(config.parent / SOCKET, _CONNECT):
                if process.poll() is not None or time.monotonic() > until:
                    log = (config.parent / "log").read_text(encoding="utf-8", errors="replace").splitlines()
                    said = log[-1] if log else "its log is empty"
                    raise InputError(OPTION, str(config), f"a daemon that starts: {said}")
                time.sleep(0.05)
        yield stack.enter_context(_opened([config.parent / SOCKET for config in configs]))


@contextmanager
def _process(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    line = [*COMMAND, "--config", str(config)]
    with (config.parent / "log").open("wb") as log, subprocess.Popen(line, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
