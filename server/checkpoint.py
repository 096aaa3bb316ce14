"""Where a run stands, in a file: its session, what silos admitted, and the aggregate of every round.

The server half is deterministic given these, so a run that was cut short goes on by replaying them. A round
that silos had answered, and that is not in the file, is asked again: same broadcast, same replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Self, TypeVar

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.wire.frames import Frame
from fedsim.wire.messages import Admission, Echo, Greeting, Hex32, Message, Name
from server.log import OVERHEAD, Log
from server.loop import Kept
from server.replies import Form

Record = TypeVar("Record", bound=Message)


class RunRecord(Message):
    """The first record: which run this is.

    `scenario` and `federation` are digests of what the run depends on; `session` names it to the silos.
    """

    kind: ClassVar[str] = "run"
    session: Hex32
    scenario: Hex32
    federation: Hex32
    greetings: dict[Name, Greeting]


class AdmittedRecord(Message):
    """The second record: every silo's admission."""

    kind: ClassVar[str] = "admitted"
    admissions: dict[Name, Admission]


class RoundRecord(Message):
    """A round that ended; the frame's arrays are the aggregate."""

    kind: ClassVar[str] = "round"
    broadcast: Hex32
    members: tuple[Annotated[int, Field(ge=0)], ...]
    left_out: dict[int, str]
    heads: dict[Name, Echo]


class Checkpoint:
    """A run's file; a `Journal` of the loop.

    Attributes:
        run: the first record.
        admissions: by silo; empty before `admit`.
        heads: the last entry known of each silo's ledger, as the last record read left it; `append` keeps
            what others have put there since.
    """

    def __init__(self, log: Log, run: RunRecord, heads: dict[str, str]) -> None:
        self.run, self.heads = run, heads
        self.admissions: dict[str, Admission] = {}
        self._log = log

    @classmethod
    def create(cls, path: Path, run: RunRecord, heads: dict[str, str]) -> Self:
        """A new run's file; `heads` is shared with whoever learns them.

        Raises:
            InputError: a run's file is there, or it cannot be written.
        """
        cls.check_free(path)
        try:
            return cls(Log.create(path, _frame(run)), run, heads)
        except OSError as error:
            raise InputError("checkpoint", str(path), f"cannot be written ({error.strerror})") from None

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise InputError where there is a run's file."""
        if path.exists():
            hint = "holds a run that did not end: resume it, or remove the file to give it up"
            raise InputError("checkpoint", str(path), hint)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The file of a run that did not end; its rounds are read by `next`.

        Raises:
            InputError: there is none, or it is damaged.
        """
        log = Log(path)
        try:
            made = cls(log, _head(log.next(), RunRecord, path), {})
            if (second := log.next()) is not None:
                made.admissions = _head(second, AdmittedRecord, path).admissions
        except BaseException:
            log.close()
            raise
        made.heads.update({name: said.head for name, said in made.admissions.items()})
        return made

    def admit(self, admissions: Mapping[str, Admission]) -> None:
        """Keep what silos admitted, before the first round."""
        self.admissions = dict(admissions)
        self._log.append(_frame(AdmittedRecord(admissions=self.admissions)))

    def next(self) -> Kept | None:
        """See `Journal`."""
        frame = self._log.next()
        if frame is None:
            return None
        said = RoundRecord.model_validate(frame.head)
        self.heads.update(said.heads)
        return Kept(said.broadcast, list(said.members), said.left_out, frame.arrays)

    def append(self, kept: Kept) -> None:
        """See `Journal`."""
        said = RoundRecord(
            broadcast=kept.broadcast,
            members=tuple(kept.members),
            left_out=dict(kept.left_out),
            heads=dict(self.heads),
        )
        self._log.append(_frame(said, kept.aggregate))

    def close(self) -> None:
        """Let another process have it."""
        self._log.close()


def expected_bytes(form: Form) -> int:
    """What the file of a whole run takes, about, and hardly more: noise does not compress."""
    numbers = sum(map(len, form.names)) * form.dimension
    return numbers * torch.empty(0, dtype=form.dtype).element_size() + len(form.names) * OVERHEAD


def _frame(said: Message, arrays: Mapping[str, Tensor] = MappingProxyType({})) -> Frame:
    return Frame(said.kind, said.model_dump(mode="json"), arrays)


def _head(frame: Frame | None, kind: type[Record], path: Path) -> Record:
    try:
        if frame is not None and frame.kind == kind.kind:
            return kind.model_validate(frame.head)
    except ValidationError:
        pass
    raise InputError("checkpoint", str(path), "is no run's checkpoint of this version")
