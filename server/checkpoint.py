"""Where a run stands, in a file: its session, what silos admitted, and the aggregate of every round.

The server method is deterministic given these, so a run that was cut short goes on by replaying them. A
round that silos had answered, and that is not in the file, is asked again: same broadcast, same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self, TypeVar

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from fedsim.common.append_log import AppendLog
from fedsim.common.errors import InputError, Refused
from fedsim.wire.frames import decode
from fedsim.wire.messages import Admission, Echo, Greeting, Hex32, Message, Name
from server.loop import Kept
from server.replies import Form

Record = TypeVar("Record", bound=Message)
_EVALUATION = "evaluation"  # its admissions
_OVERHEAD = 512  # bytes of a round's record beside its arrays, about


class RunRecord(Message, kind="run"):
    """The first record: which run this is.

    `scenario` and `federation` are digests of what the run depends on; `session` names it to the silos.
    `greetings` are those of the silos that were offered it, `absent` the others of the federation, and why.
    """

    session: Hex32
    scenario: Hex32
    federation: Hex32
    greetings: dict[Name, Greeting]
    absent: dict[Name, str] = Field(default_factory=dict)


class AdmittedRecord(Message, kind="admitted"):
    """The second record: the admission of every silo that takes part."""

    admissions: dict[Name, Admission]


class RoundRecord(Message, kind="round"):
    """A round that ended; the frame's arrays are the aggregate."""

    broadcast: Hex32
    members: tuple[Annotated[int, Field(ge=0)], ...]
    left_out: dict[int, str]
    seconds: float | None = None
    heads: dict[Name, Echo]


class Checkpoint:
    """A run's file; a `Journal` of the loop.

    Attributes:
        run: the first record.
        admissions: by silo; empty before `admit`.
        heads: the last entry known of each silo's ledger, as the last record read left it; `append` keeps
            what others have put there since.
        log: the file; the newest request to a shuffler is kept in it too (`server.secure_aggregation`).
    """

    def __init__(self, path: Path, log: AppendLog, heads: dict[str, str]) -> None:
        self.run, self.heads, self.log = _head(log.read(1), RunRecord, path), heads, log
        self.admissions: dict[str, Admission] = {}
        self._path, self._at = path, 2

    @classmethod
    def create(cls, path: Path, run: RunRecord, heads: dict[str, str]) -> Self:
        """A new run's file, which shares `heads`; InputError if there is one, or it cannot be written."""
        cls.check_free(path)
        try:
            AppendLog.create(path, run.body())
        except OSError as error:
            raise InputError("checkpoint", str(path), f"cannot be written ({error})") from None
        return cls(path, _held(path), heads)

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise InputError where there is a run's file."""
        if path.exists():
            hint = "holds a run that did not end: resume it, or remove the file to give it up"
            raise InputError("checkpoint", str(path), hint)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The file of an unfinished run, read by `next`; InputError if it is absent, damaged or in use."""
        with ExitStack() as held:
            log = _held(path)
            held.callback(log.close)
            made = cls(path, log, {})
            if (second := made._read()) is not None:
                made.admissions = _head(second, AdmittedRecord, path).admissions
            held.pop_all()
        made.heads.update({name: said.head for name, said in made.admissions.items()})
        return made

    def admit(self, admissions: Mapping[str, Admission]) -> None:
        """Keep what silos admitted, before the first round."""
        self.admissions = dict(admissions)
        self._append("admitted", AdmittedRecord(admissions=self.admissions))

    def evaluation(self, offer: Callable[[], Mapping[str, Admission]]) -> Mapping[str, Admission]:
        """What silos admitted of the run's evaluation: offered once, and kept before they are asked."""
        if (kept := self.log.kept(_EVALUATION)) is not None:
            return _head(kept[1], AdmittedRecord, self._path).admissions
        admissions = dict(offer())
        self.log.keep(_EVALUATION, AdmittedRecord(admissions=admissions).body())
        return admissions

    def next(self) -> Kept | None:
        """See `Journal`."""
        body = self._read()
        if body is None:
            return None
        frame = decode(body)
        said = RoundRecord.model_validate(frame.head)
        self.heads.update(said.heads)
        return Kept(said.broadcast, list(said.members), said.left_out, frame.arrays, said.seconds)

    def append(self, kept: Kept) -> None:
        """See `Journal`."""
        said = RoundRecord(
            broadcast=kept.broadcast,
            members=tuple(kept.members),
            left_out=dict(kept.left_out),
            seconds=kept.seconds,
            heads=dict(self.heads),
        )
        self._append(f"round {self.log.newest.seq - 2}", said, kept.aggregate)

    @property
    def rounds(self) -> int:
        """Rounds that it holds."""
        return max(0, self.log.newest.seq - 2)

    def close(self) -> None:
        """Let another process have it."""
        self.log.close()

    def remove(self) -> None:
        """Close the file and remove it: the run has ended, or nothing was released in it."""
        self.close()
        self._path.unlink()

    def _read(self) -> bytes | None:
        body = self.log.read(self._at)
        self._at += body is not None
        return body

    def _append(self, key: str, record: Message, arrays: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        self.log.append(key, record.body(arrays))
        self._at = self.log.newest.seq + 1


def expected_bytes(form: Form) -> int:
    """Approximate size of the file of a whole run."""
    numbers = sum(size for arrays in form.arrays for _, size in arrays)
    return numbers * torch.empty(0, dtype=form.dtype).element_size() + len(form.arrays) * _OVERHEAD


def _head(body: bytes | None, kind: type[Record], path: Path) -> Record:
    with suppress(Refused, ValidationError):
        if body is not None and (frame := decode(body)).kind == kind.kind:
            return kind.model_validate(frame.head)
    raise InputError("checkpoint", str(path), "is no run's checkpoint of this version")


def _held(path: Path) -> AppendLog:
    if not path.is_file():
        raise InputError("checkpoint", str(path), "there is no such file")
    try:
        return AppendLog.open(path)
    except Refused as refusal:
        raise InputError("checkpoint", str(path), str(refusal)) from None
