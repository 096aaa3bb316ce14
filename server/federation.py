"""The silos of a deployed run as their server sees them: asked over a channel, believed only what they sign.

A silo whose reply is late, wrong or a refusal is left out of that round, with the reason, and asked again in
the next. One that missed the deadline is asked for a greeting first, which costs it nothing, and which no
round waits for longer than `KNOCK`: a silo that is lost costs the others one deadline. A round needs
`min_silos` answers: where fewer came, silos that did not answer themselves (late, or something else in their
place) are asked again until `patience` is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedsim.common.errors import Behind, Lost, Refused
from fedsim.protocol.copies import digest
from fedsim.protocol.links import Answered
from fedsim.wire.frames import sealed
from fedsim.wire.messages import Admission, Ask, Close, Closed, Greeting, Hello, Mark, Message, Offer, Reply
from server.replies import Form, Reports, WrongReply, read

KNOCK = 1.5
"""Seconds for a greeting: a node looks for messages every second, a server for replies every 0.2 s."""
Frames = Mapping[str, bytes]
"""By name of the silo (`fedsim.wire.frames`)."""
NO_FRAMES: Frames = MappingProxyType({})
NO_ARRAYS: Mapping[str, Tensor] = MappingProxyType({})


class Channel(Protocol):
    """A way to silos, by name. Nothing rests on it: replies are signed, and every frame may be sent twice."""

    def exchange(self, frames: Frames, deadline: float, knocks: Frames = NO_FRAMES) -> Frames:
        """Send each silo its frame, all at once, and wait for the replies; returns those of the silos that
        answered in time, which may be any bytes.

        Args:
            deadline: seconds from now after which replies count as not given. A silo that cannot be reached
                is tried again until then, since its process may be being restarted.
            knocks: frames for other silos, whose replies are waited for until `KNOCK` seconds have passed or
                `frames` have their replies, whichever is later.
        """


_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before those that are missing are asked again
_DECIDING = 120.0  # the longest such pause where all that are missing have asked for time
_AWAY, _LONGEST_AWAY = 4.0, 120.0  # seconds between two knocks at a silo that missed deadlines
NOT_ASKED = "not asked: it missed a deadline, and has not been back since"

Taken = TypeVar("Taken")
Take = Callable[[str, bytes], Taken]
"""What a silo's reply says; WrongReply if it does not count."""
Answers = tuple[dict[str, Taken], dict[str, str]]
"""By silo what could be taken, and the reasons of the others."""
_Attempt = tuple[dict[str, Taken], dict[str, WrongReply]]


class _Absent:
    """Silos that missed a deadline, and when they are knocked at: at once, then with a pause that doubles
    until one has answered a round in time (a silo that greets may be too slow all the same).
    """

    def __init__(self) -> None:
        self.due: dict[str, float] = {}
        self._pauses: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.due

    def missed(self, name: str) -> None:
        self.due[name] = time.monotonic() + self._pauses.get(name, 0.0)
        self._pauses[name] = min(2 * self._pauses.get(name, 0.0) or _AWAY, _LONGEST_AWAY)

    def greeted(self, name: str) -> None:
        """It is there: asked, but not trusted to be in time yet."""
        del self.due[name]

    def answered(self, name: str) -> None:
        self.due.pop(name, None)
        self._pauses.pop(name, None)


class Unanswered(Refused):
    """Too few silos joined, and none of them has refused: the same may be asked again."""


class RemoteSilos:
    """A `Link` to silos behind a channel, for one run.

    Args:
        identities: each silo's Ed25519 public key, 32 bytes, by name.
        deadline: seconds that silos have for a reply.
        min_silos: fewer answers than this, or than were asked, are no round; all silos by default.
        patience: seconds after which a round with too few answers ends the run, and that a silo has to
            decide on an offer.
        heads: the last entry known of each silo's ledger; shared, and updated as replies come.
        say: told in words which silos are waited for.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Mapping[str, bytes],
        deadline: float,
        min_silos: int | None = None,
        patience: float = 600.0,
        heads: dict[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._say = say
        self.names = tuple(sorted(identities))
        self.heads = {} if heads is None else heads
        self.runs: dict[str, str] = {}
        self._channel, self.identities = channel, dict(identities)
        self._deadline, self._patience = deadline, max(deadline, patience)
        self.least = len(self.names) if min_silos is None else min_silos
        self._form: Form | Reports = Form((), torch.float64)
        self._absent = _Absent()

    def hello(self, least: int | None = None) -> Answers[Greeting]:
        """The public numbers of the silos that greeted within the deadline, and the reasons of the others.
        Refused if fewer than `least` (default: all) greet while patience lasts.
        """
        return self._joined({name: self._sealed(name, Hello()) for name in self.names}, self._greeting, least)

    def keep(self, names: Collection[str]) -> None:
        """From here on the run is of these silos alone; positions are among their names, ascending."""
        self.identities = {name: key for name, key in self.identities.items() if name in names}
        self.names = tuple(sorted(self.identities))

    def offer(
        self, offers: Mapping[str, Offer], least: int | None = None, again: bool = False
    ) -> Answers[Admission]:
        """The admissions of the silos that admitted a run, and the reasons of those that do not (`_joined`);
        if there are such, the run is closed at those that admitted it, unless it may be offered `again`.
        Refused if fewer than `least` (default: all) admit it, Unanswered if none has refused.
        """

        def admission(name: str, data: bytes) -> Admission:
            said, _ = read(data, self.identities[name], Admission)
            if said.session != offers[name].session:
                raise WrongReply("it admitted another session", final=False)
            self.heads[name], self.runs[name] = said.head, said.run
            return said

        frames = {name: self._sealed(name, offer) for name, offer in offers.items()}
        try:
            admitted, refused = self._joined(frames, admission, least)
        except Refused as refusal:
            if not (again and isinstance(refusal, Unanswered)):
                self.close(over=True)
            raise
        if refused:
            self.close(over=True)
            self.runs = {}
        return admitted, refused

    def begin(self, runs: Mapping[str, str], form: Form | Reports) -> None:
        """The runs' ids, by silo, and what messages look like; before the first `answer`."""
        self.runs, self._form, self._absent = dict(runs), form, _Absent()

    def answer(
        self,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        members: Sequence[int],
        mark: Mark | None = None,
    ) -> Answered:
        """One round, with the shuffler's mark under secure aggregation. Refused if too few answered; Lost if
        too few ever can.
        """
        if not members:
            raise Lost("no silo that this epoch began with takes part")
        names = [self.names[member] for member in members]
        sent = digest(broadcast).hex()

        def reply(name: str, data: bytes) -> Mapping[str, Tensor]:
            said, frame = read(data, self.identities[name], Reply)
            if (said.run, said.round, said.broadcast) != (self.runs[name], round_index, sent):
                raise WrongReply("it answered another round", final=False)
            self.heads[name] = said.head
            self._form.check(frame, round_index)
            self._absent.answered(name)
            return frame.arrays

        frames = {}
        for name in names:
            ask = Ask(run=self.runs[name], round=round_index, mark=mark, head="")
            frames[name] = self._sealed(name, ask, broadcast)
        taken, reasons = self._collect(frames, reply, min(self.least, len(names)))
        there = [member for member in members if self.names[member] in taken]
        rows = [taken[self.names[member]] for member in there]
        messages = {key: torch.stack([row[key] for row in rows]) for key in sorted(rows[0])}
        left_out = {m: reasons[self.names[m]] for m in members if self.names[m] in reasons}
        return Answered(there, messages, left_out)

    def close(self, over: bool = False) -> Answers[Closed]:
        """The statements of the silos that admitted a run, and for the others why there is none; if the run
        is `over`, its evaluation is closed too.
        """

        def closed(name: str, data: bytes) -> Closed:
            said, _ = read(data, self.identities[name], Closed)
            if said.run != self.runs[name] or len(said.rounds) != len(said.broadcasts):
                raise WrongReply("it closed another run", final=False)
            self.heads[name] = said.head
            return said

        says = {name: Close(run=run, over=over, head="") for name, run in self.runs.items()}
        frames = {name: self._sealed(name, said) for name, said in says.items()}
        taken, wrong = self._once(frames, closed, self._deadline)
        return taken, {name: error.reason for name, error in wrong.items()}

    def _sealed(self, name: str, message: Message, arrays: Mapping[str, Tensor] = NO_ARRAYS) -> bytes:
        return sealed(message.model_copy(update={"head": self.heads.get(name, "")}).body(arrays))

    def _greeting(self, name: str, data: bytes) -> Greeting:
        said, _ = read(data, self.identities[name], Greeting)
        if said.silo != name:
            raise WrongReply("it has another name", final=True)
        self.heads.setdefault(name, said.head)  # a greeting may be an old one, repeated by others
        return said

    def _joined(self, frames: Frames, take: Take[Taken], least: int | None) -> Answers[Taken]:
        """What silos answered that join, at least `least` (default: all), and why others are given up.

        A silo that gives no usable reply has the deadline; one that asked for time, since its operator
        decides or it is busy, has `patience` from the first frame on. Where silos are given up while others
        still decide, the answer comes at once, without these: what they are asked will change.
        """
        self._absent, start, pause, deciding = _Absent(), time.monotonic(), _PAUSE, set[str]()
        needed = len(frames) if least is None else min(least, len(frames))
        taken, wrong = self._once(frames, take, self._deadline)
        while True:
            final = {name for name, error in wrong.items() if error.final}
            deciding = self._deciding(wrong, deciding) - final
            silent = wrong.keys() - final - deciding
            sure = len(taken) + len(deciding)
            limit = self._deadline if silent and sure >= needed else self._patience
            left = start + limit - time.monotonic()
            hope = sure + len(silent) >= needed and bool(silent or (deciding and not final))
            if not hope or left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE if silent else _DECIDING)
            again = {name: frames[name] for name in silent | deciding}
            more, errors = self._once(again, take, min(self._deadline, left))
            taken |= more
            wrong = {name: wrong[name] for name in final} | errors
        given_up = (final | silent) or deciding
        if len(taken) + len(deciding - given_up) < needed:
            kind = Refused if final or deciding else Unanswered
            raise kind(_too_few(len(taken), len(frames), needed, wrong))
        return taken, {name: wrong[name].reason for name in given_up}

    def _deciding(self, wrong: Mapping[str, WrongReply], before: Collection[str]) -> set[str]:
        """The silos that have asked for time and have not joined; of new ones it is said."""
        for name in sorted(name for name, error in wrong.items() if error.later and name not in before):
            most = timedelta(seconds=round(self._patience))
            self._say(f"silo {name} is waited for, {most} at most: {wrong[name].reason}")
        return {name for name, error in wrong.items() if error.later or name in before}

    def _collect(self, frames: Frames, take: Take[Taken], least: int) -> Answers[Taken]:
        """What could be taken, at least `least`, and the reasons of the other silos."""
        start, pause = time.monotonic(), _PAUSE
        taken, wrong = self._present(frames, take)
        while len(taken) < least:
            again = {name: frames[name] for name, error in wrong.items() if not error.final}
            left = start + self._patience - time.monotonic()
            if len(taken) + len(again) < least or left <= 0:
                lost = [error.kind for error in wrong.values() if issubclass(error.kind, Lost)]
                kind = Refused if len(frames) - len(lost) >= least else Behind if Behind in lost else Lost
                raise kind(_too_few(len(taken), len(frames), least, wrong))
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
            more, errors = self._once(again, take, min(self._deadline, left))
            taken |= more
            wrong = {name: error for name, error in wrong.items() if error.final} | errors
        return taken, {name: error.reason for name, error in wrong.items()}

    def _present(self, frames: Frames, take: Take[Taken]) -> _Attempt[Taken]:
        """The first attempt: silos that missed the deadline before are asked once they have greeted."""
        absent = {name: WrongReply(NOT_ASKED, final=False) for name in frames if name in self._absent}
        due = [name for name in absent if self._absent.due[name] <= time.monotonic()]
        knocks = {name: self._sealed(name, Hello()) for name in due}
        asked = {name: frame for name, frame in frames.items() if name not in absent}
        replies = self._channel.exchange(asked, self._deadline, knocks)
        taken, wrong = self._read(asked, replies, take, self._deadline)
        for name in self._read(knocks, replies, self._greeting, self._deadline)[0]:
            self._absent.greeted(name)
        back = {name: frames[name] for name in absent if name not in self._absent}
        more, errors = self._once(back, take, self._deadline)
        away = {name: error for name, error in absent.items() if name not in back}
        return taken | more, wrong | errors | away

    def _once(self, frames: Frames, take: Take[Taken], deadline: float) -> _Attempt[Taken]:
        return self._read(frames, self._channel.exchange(frames, deadline) if frames else {}, take, deadline)

    def _read(self, frames: Frames, replies: Frames, take: Take[Taken], deadline: float) -> _Attempt[Taken]:
        taken, wrong = {}, {}
        for name in frames:
            try:
                if name not in replies:
                    self._absent.missed(name)
                    raise WrongReply(f"no reply within {deadline:.3g} s", final=False)
                taken[name] = take(name, replies[name])
            except WrongReply as error:
                wrong[name] = error
        return taken, wrong


def _too_few(count: int, asked: int, least: int, wrong: Mapping[str, WrongReply]) -> str:
    said = "; ".join(f"{name}: {error.reason}" for name, error in sorted(wrong.items()))
    return f"{count} of {asked} silos answered, {least} are needed ({said})"
