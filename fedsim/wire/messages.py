"""Messages between a server and a silo: the heads of frames (`fedsim.wire.frames`).

A run, as the silo sees it:

    Hello   -> Greeting            who are you; n, features and classes are public
    Offer   -> Admission           the plan's algorithm and numbers; the silo prices it and sets its noise
    Ask     -> Reply               one round: broadcast arrays in, noisy arrays out
    Close   -> Closed              the silo's statement and signed receipt
    any     -> Refusal             with the reason, made of public values only

A server and a shuffler have messages of their own (`fedsim.secagg.shuffling`).

Everything may be delivered twice, late or out of order: the same Offer (by `session`) is the same run, the
same Ask (run, round, broadcast) gets the same Reply, byte for byte.

`head` is the head of the silo's chain of ledger entries, or the shuffler's of notes. A server echoes the last
one that it has seen of the party ("" before the first); who does not know it has lost entries, and refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from fedsim.common.errors import Behind, Busy, Lost, Refused
from fedsim.common.section import Section
from fedsim.protocol.plan import Part
from fedsim.protocol.unit import RECORD, AccountUnit, Unit
from fedsim.wire.frames import Frame, encode

Hex32 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]  # 32 bytes as hexadecimal
Echo = Annotated[str, StringConstraints(pattern="^([0-9a-f]{64})?$")]
Hex64 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{128}$")]  # 64 bytes as hexadecimal
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
SiloName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9 .,&'()+_-]{0,98}[A-Za-z0-9._)-])?$")
]
"""A silo's name where it is written by hand."""


_LONGEST = 2_000  # characters of a reason, which may quote what was asked


class Message(Section):
    """The head of one kind of frame; `kind` is the class's name in small letters, unless it is given."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", **settings: Any) -> None:
        cls.kind = kind or cls.__name__.lower()
        super().__init_subclass__(**settings)

    def body(self, arrays: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """The body of its frame."""
        return encode(Frame(self.kind, self.model_dump(mode="json"), arrays))


class Hello(Message):
    """Ask a silo who it is."""

    head: Echo = ""


class Profile(Section):
    """What is public of a silo. Numbers are of units, and under `add_remove` what stands for their number."""

    silo: Name
    n: int  # units that train
    held_out: int = Field(0, ge=0, exclude_if=lambda count: not count)  # others, which answer evaluations
    unit: AccountUnit = Field(RECORD, exclude_if=lambda unit: unit == RECORD)
    num_features: int  # with the intercept
    num_classes: int  # 0 for a number
    groups: tuple[Name, ...] = Field((), exclude_if=lambda names: not names)
    public: bool = Field(False, exclude_if=lambda public: not public)  # whether its records are

    def of(self, part: Part) -> Profile:
        """The same of one part of the records; Refused if it is none."""
        if part == "training":
            return self
        if not self.held_out:
            raise Refused(f"offer: silo {self.silo!r} holds out no {self.unit.name}s to evaluate with")
        return self.model_copy(update={"n": self.held_out})


class Greeting(Profile, Message):
    """A silo's answer; `notices` are lines for the report, such as that noise comes from a seed."""

    version: str
    notices: tuple[str, ...]
    time: int = Field(0, exclude_if=lambda time: not time)  # the ledger's, seconds since 1970; not of before
    head: Hex32


class Shape(Section):
    """The federation's outline: units of each silo's part, features with the intercept, classes, groups."""

    sizes: dict[Name, Annotated[int, Field(ge=1)]]
    num_features: int = Field(ge=1)
    num_classes: int = Field(ge=0)
    num_groups: int = Field(0, ge=0, exclude_if=lambda count: not count)


class Pooled(Section):
    """What an offer with secure aggregation has besides: the mechanism's name and steps, the roster, and this
    silo's clip.

    Who else is in the sums, how many at least, and who adds noise, the silo takes from the roster.
    """

    mechanism: Name
    roster: Hex32
    steps: int | None = Field(None, ge=1, le=2**20)
    clip: float = Field(gt=0, le=1)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


class Study(Section):
    """What a run is for, in the words of its server, which nothing proves."""

    name: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
    purpose: Annotated[str, Field(max_length=1_000), AfterValidator(_printable)] = ""


_FOLLOW = {"session", "study", "silo", "records", "evaluation", "head"}
"""Fields of an evaluation's offer that follow from the run's."""


class Offer(Message):
    """A run that a server proposes to one silo; names and numbers, never code.

    `session` is the server's name for the run. `rounds` are those of this silo, ascending; None for all.
    `noise_multiplier` is given or found by the silo within its budget. `epsilon` and `delta` are what the
    scenario has for this silo; its policy may make them smaller. `unit` is what the plan protects, `records`
    which part of the silo's records answers. With `pooled` the silo's answers are added to those of others,
    and the noise multiplier is common to all of them. `evaluation` has the fields in which the offer of the
    run's evaluation differs: it is a run of its own, and an operator decides on both at once. (Long lists
    fail at their first bad number: pydantic keeps every complaint.)
    """

    format: Literal[1] = 1
    session: Hex32
    study: Study = Study(name="unnamed")
    silo: Name
    algorithm: dict[str, Any]
    problem: dict[str, Any]
    shape: Shape
    weights: Annotated[tuple[float, ...], Field(fail_fast=True)]
    dtype: Literal["float64", "float32"]
    seed: int
    rounds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(fail_fast=True)] | None
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    noise_multiplier: float | None = None
    pooled: Pooled | None = None
    records: Part = Field("training", exclude_if=lambda part: part == "training")
    unit: Unit = Field(RECORD, exclude_if=lambda unit: unit == RECORD)
    evaluation: dict[str, Any] | None = Field(None, exclude_if=lambda fields: fields is None)
    head: Echo

    def with_evaluation(self, other: Offer) -> Offer:
        """The same with what `evaluated` makes of it, an offer of a run on held-out records."""
        own, asked = self.model_dump(mode="json"), other.model_dump(mode="json")
        fields = {k: value for k, value in asked.items() if k not in _FOLLOW and own.get(k) != value}
        return self.model_copy(update={"evaluation": fields})

    @property
    def evaluated(self) -> Offer | None:
        """The offer of its evaluation; None where there is none. Refused if it is malformed."""
        if self.evaluation is None:
            return None
        other = {name: value for name, value in self.evaluation.items() if name not in _FOLLOW}
        other["session"] = evaluation_of(self.session)
        own = self.model_dump(mode="json", exclude={"evaluation"})
        try:
            return Offer.model_validate({**own, **other, "records": "holdout", "head": ""})
        except ValidationError:
            raise Refused("offer: its evaluation is malformed") from None

    @property
    def text(self) -> str:
        """JSON, ASCII, without what may change between repetitions."""
        return json.dumps(self.model_dump(mode="json", exclude={"head"}))


def evaluation_of(session: str) -> str:
    """The session of a run's evaluation."""
    return hashlib.sha256(f"{session} evaluation".encode()).hexdigest()


def named(text: str) -> str:
    """The digest of an offer's text, 64 hexadecimal digits: what an offer is called."""
    return hashlib.sha256(text.encode()).hexdigest()


class Admission(Message):
    """A silo's yes: the run's id, its noise and what it guarantees.

    None: nothing is guaranteed, the silo's records are public.
    With secure aggregation, `epsilon_colluding` is the guarantee if server and shuffler collude; None: none.
    `notices` are lines for the report, such as noise drawn in floating point or a seed.
    """

    session: Hex32
    run: Hex32
    epsilon: float | None = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    noise_multiplier: float = Field(ge=0)
    epsilon_guaranteed: float | None = Field(ge=0)
    epsilon_colluding: float | None = Field(None, ge=0)
    releases: int = Field(ge=0)
    accountant: str
    notices: tuple[str, ...]
    head: Hex32


class Mark(Section):
    """Where a shuffler's chain of notes stands: its newest entry, and the one with which its process began;
    signed by the shuffler (`fedsim.secagg.shuffling`)."""

    number: int = Field(ge=1, lt=2**63)
    head: Hex32
    start: Hex32
    signature: Hex64


class Ask(Message):
    """One round; the frame's arrays are the broadcast. Secure aggregation adds the shuffler's `mark`."""

    run: Hex32
    round: int = Field(ge=0)
    mark: Mark | None = None
    head: Echo


class Reply(Message):
    """A silo's answer to a round; the frame's arrays are its message. `broadcast` is what it answers."""

    run: Hex32
    round: int
    broadcast: Hex32
    head: Hex32


class Close(Message):
    """No round will be asked for any more; if the run is `over`, none of its evaluation either."""

    run: Hex32
    over: bool = Field(False, exclude_if=lambda over: not over)
    head: Echo


class Closed(Message):
    """The rounds that a silo answered and what they cost; `receipt` is JSON that it signed."""

    run: Hex32
    epsilon_spent: float | None = Field(ge=0)
    rounds: tuple[int, ...]
    broadcasts: tuple[Hex32, ...]
    receipt: str
    head: Hex32


class Refusal(Message):
    """A silo's no, or a shuffler's; of which kind, the classes in `fedsim.common.errors` say."""

    reason: str
    again: bool = False
    lost: bool = Field(False, exclude_if=lambda lost: not lost)
    behind: bool = Field(False, exclude_if=lambda behind: not behind)

    @classmethod
    def of(cls, refused: Refused) -> Refusal:
        """What is said of it to the party that asked."""
        again, lost, behind = (isinstance(refused, kind) for kind in (Busy, Lost, Behind))
        return cls(reason=str(refused)[:_LONGEST], again=again, lost=lost, behind=behind)

    @property
    def error(self) -> type[Refused]:
        """The inverse of `of`."""
        return Behind if self.behind else Lost if self.lost else Busy if self.again else Refused
