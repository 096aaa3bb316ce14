"""Where a run stands, in its record: its session, what silos admitted, and the aggregate of every round.

The server method is deterministic given these, so a run that was cut short goes on by replaying them. A
round that silos had answered, and that is not in the file, is asked again: same broadcast, same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self, TypeVar

import torch
from pydantic import Field, ValidationError

from fedsim.common.chain import RUN, Entry, text
from fedsim.common.errors import CAN_RESUME, InputError, Refused
from fedsim.common.section import Section
from fedsim.common.store import Store
from fedsim.wire.frames import Frame, decode, encode
from fedsim.wire.messages import Admission, Echo, Greeting, Hex32, Name
from server.loop import Kept
from server.replies import Form

Record = TypeVar("Record", bound=Section)
_RUN, _ADMITTED, _ROUND, _EVALUATION = "run", "admitted", "round", "evaluation"  # kinds of entries
_NONE: Mapping[str, bytes] = MappingProxyType({})
_OVERHEAD = 512  # bytes of a round's record beside its arrays, about


class RunRecord(Section):
    """The first record: which run this is.

    `scenario` and `federation` are digests of what the run depends on; `session` names it to the silos.
    `greetings` are those of the silos that were offered it, `absent` the others of the federation, and why.
    """

    session: Hex32
    scenario: Hex32
    federation: Hex32
    greetings: dict[Name, Greeting]
    absent: dict[Name, str] = Field(default_factory=dict)


class AdmittedRecord(Section):
    """The second record: the admission of every silo that takes part."""

    admissions: dict[Name, Admission]


class RoundRecord(Section):
    """A round that ended; its body has the aggregate, as the arrays of a frame."""

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
        rounds: the number of rounds that it holds.
        store: the file; the newest request to a shuffler is kept in it too (`server.secure_aggregation`).
    """

    def __init__(self, store: Store, heads: dict[str, str]) -> None:
        self.store, self.heads = store, heads
        run, admitted = self._said(_RUN, RunRecord), self._said(_ADMITTED, AdmittedRecord)
        if run is None or store.damaged:
            raise Refused("it is damaged, or of no deployed run")
        self.run, self.admissions = run, {} if admitted is None else admitted.admissions
        (self.rounds,) = store.query("SELECT count(*) FROM entries WHERE kind = ?", (_ROUND,))
        self._at = 0

    @classmethod
    def create(cls, path: Path, run: RunRecord, heads: dict[str, str]) -> Self:
        """A new run's file, which shares `heads`; InputError if there is one, or it cannot be written."""
        with _as_input(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            Store.make(path, RUN, _RUN, text(run.model_dump(mode="json")))
            return cls(Store.hold(path, RUN), heads)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The file of an unfinished run, read by `next`; InputError if it is absent, damaged or in use."""
        if not path.is_file():
            raise InputError("record", str(path), "there is no such file")
        with _as_input(path), ExitStack() as held:
            made = cls(held.enter_context(Store.hold(path, RUN)), {})
            held.pop_all()
        made.heads.update({name: said.head for name, said in made.admissions.items()})
        return made

    def admit(self, admissions: Mapping[str, Admission]) -> None:
        """Keep what silos admitted, before the first round; InputError if it cannot be written."""
        self.admissions = dict(admissions)
        self._append(_ADMITTED, AdmittedRecord(admissions=self.admissions))

    def evaluation(self, offer: Callable[[], Mapping[str, Admission]]) -> Mapping[str, Admission]:
        """What silos admitted of the run's evaluation: offered once, and kept before they are asked."""
        if not self.evaluating:
            self._append(_EVALUATION, AdmittedRecord(admissions=dict(offer())))
        return self.evaluating

    @property
    def evaluating(self) -> Mapping[str, Admission]:
        """By silo what was admitted of the run's evaluation; none before that."""
        kept = self._said(_EVALUATION, AdmittedRecord)
        return {} if kept is None else kept.admissions

    def next(self) -> Kept | None:
        """See `Journal`."""
        if (entry := self.store.next(_ROUND, self._at)) is None:
            return None
        with _as_input(self.store.path):
            said = RoundRecord.model_validate_json(entry.payload)
            arrays = decode(self.store.body(f"round {entry.seq}") or b"").arrays
        self._at = entry.seq
        self.heads.update(said.heads)
        return Kept(said.broadcast, list(said.members), said.left_out, arrays, said.seconds)

    def append(self, kept: Kept) -> None:
        """See `Journal`."""
        said = RoundRecord(
            broadcast=kept.broadcast,
            members=tuple(kept.members),
            left_out=dict(kept.left_out),
            seconds=kept.seconds,
            heads=dict(self.heads),
        )
        name = f"round {self.store.newest.seq + 1}"
        self._at = self._append(_ROUND, said, {name: encode(Frame(_ROUND, {}, kept.aggregate))}).seq
        self.rounds += 1

    def close(self) -> None:
        """Let another process have it."""
        self.store.close()

    def remove(self) -> None:
        """Close the file and remove it, with its folder where that is empty: nothing was released."""
        self.close()
        self.store.path.unlink()
        with suppress(OSError):
            self.store.path.parent.rmdir()

    def _said(self, kind: str, record: type[Record]) -> Record | None:
        """The one entry of a kind."""
        found = self.store.next(kind)
        return None if found is None else record.model_validate_json(found.payload)

    def _append(
        self, kind: str, record: Section, bodies: Mapping[str, bytes] = MappingProxyType({})
    ) -> Entry:
        try:
            return self.store.append(kind, text(record.model_dump(mode="json")), bodies=bodies)
        except OSError as error:
            hint = f"cannot be written ({error.strerror or error}); {CAN_RESUME}"
            raise InputError("record", str(self.store.path), hint) from None


def expected_bytes(form: Form) -> int:
    """Approximate size of the file of a whole run."""
    numbers = sum(size for arrays in form.arrays for _, size in arrays)
    return numbers * torch.empty(0, dtype=form.dtype).element_size() + len(form.arrays) * _OVERHEAD


@contextmanager
def _as_input(path: Path) -> Iterator[None]:
    """What is wrong with the file as an InputError: it is for the server's operator to mend."""
    try:
        yield
    except (Refused, OSError, ValidationError) as error:
        hint = (isinstance(error, OSError) and error.strerror) or str(error)
        if isinstance(error, ValidationError):
            hint = "is no run's record of this version"
        raise InputError("record", str(path), hint) from None
