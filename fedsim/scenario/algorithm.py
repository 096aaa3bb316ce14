"""The `algorithm` section: one model per algorithm, made from the fields of its dataclass."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_type_hints

from pydantic import Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from fedsim.algorithms.registry import algorithms
from fedsim.common.errors import InputError
from fedsim.protocol import batch
from fedsim.protocol.contract import Algorithm
from fedsim.scenario.section import Section
from fedsim.scenario.shorthand import Shorthand

Fraction = Annotated[float, Field(ge=1e-9, le=1, description="share of the silo's records in a batch")]


class _Full(Section):
    """Every record, every time."""

    sampler: Literal["full"] = "full"


class _Subsample(Section):
    """A uniform subset without replacement, drawn anew each time."""

    sampler: Literal["subsample"]
    fraction: Fraction


class _WithReplacement(Section):
    """Independent draws with replacement, as published; a subset costs less privacy."""

    sampler: Literal["with_replacement"]
    fraction: Fraction


class _Poisson(Section):
    """Each record on its own with the same probability."""

    sampler: Literal["poisson"]
    fraction: Fraction


class _Fresh(Section):
    """Disjoint batches: no record is used twice."""

    sampler: Literal["fresh"]
    fraction: Fraction


_AnyBatch = _Full | _Subsample | _WithReplacement | _Poisson | _Fresh
_BatchConfig = Annotated[_AnyBatch, Field(discriminator="sampler"), Shorthand("sampler")]
_BATCHES: dict[str, type[batch.Subsample | batch.WithReplacement | batch.Poisson | batch.Fresh]] = {
    "subsample": batch.Subsample,
    "with_replacement": batch.WithReplacement,
    "poisson": batch.Poisson,
    "fresh": batch.Fresh,
}


def samplers() -> dict[str, str]:
    """{name: one-line doc} of the samplers."""
    return {kind.model_fields["sampler"].annotation.__args__[0]: kind.__doc__ for kind in get_args(_AnyBatch)}


class AlgorithmSection(Section):
    """An algorithm's public numbers."""

    required: ClassVar[tuple[str, ...]] = ()
    name: str
    parameters: Literal["given", "theorem"] = Field(
        "given", description="theorem: numbers that are not given are those of the algorithm's theorem"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        absent = [key for key in self.required if getattr(self, key) is None]
        if self.parameters == "given" and absent:
            lines = [InitErrorDetails(type="missing", loc=(key,), input=None) for key in absent]
            raise ValidationError.from_exception_data(self.name, lines)
        return self

    def build(self) -> Algorithm:
        """The algorithm itself.

        Raises:
            InputError: a number is still to be filled in by a theorem, or it finds its numbers at odds.
        """
        values = {key: getattr(self, key) for key in type(self).model_fields if key not in _OWN}
        for key in self.required:
            if values[key] is None:
                expected = "is required: the theorem does not set it"
                raise InputError(f"scenario.algorithm.{key}", None, expected)
        built = {k: as_batch(value) if isinstance(value, _AnyBatch) else value for k, value in values.items()}
        try:
            return algorithms()[self.name](**built)
        except InputError as error:
            raise InputError(f"scenario.algorithm.{error.field}", error.value, error.expected) from None


_OWN = ("name", "parameters")


def as_batch(chosen: _AnyBatch) -> batch.Batch:
    """The batch that a section says."""
    return batch.FULL if isinstance(chosen, _Full) else _BATCHES[chosen.sampler](chosen.fraction)


def _section(name: str, kind: type[Algorithm]) -> type[AlgorithmSection]:
    hints = get_type_hints(kind, include_extras=True)
    members: dict[str, Any] = {"name": (Literal[name], Field(description="the algorithm"))}
    for field in fields(kind):  # type: ignore[arg-type]
        members[field.name] = _member(hints[field.name], field.default)
    model = create_model(name, __base__=AlgorithmSection, __doc__=kind.__doc__, **members)
    model.required = tuple(f.name for f in fields(kind) if f.default is MISSING)  # type: ignore[arg-type]
    by_theorem: Any = {"properties": {"parameters": {"const": "theorem"}}, "required": ["parameters"]}
    model.model_config["json_schema_extra"] = {"if": by_theorem, "else": {"required": list(model.required)}}
    return model


def _sections() -> dict[str, type[AlgorithmSection]]:
    made = {}
    for name, kind in algorithms().items():
        try:
            made[name] = _section(name, kind)
        except Exception as error:  # a plug-in's field may be anything
            expected = f"fields that a scenario can hold ({type(error).__name__}: {error})"
            raise InputError(f"algorithm {name}", kind.__qualname__, expected) from error
    return made


def _member(hint: Any, default: Any) -> tuple[Any, Any]:
    if get_args(hint)[:1] == (batch.Batch,):
        info = get_args(hint)[1]
        return Annotated[_BatchConfig, Field(description=info.description)], _Full()
    if default is not MISSING:
        return hint, default
    described = next((info.description for info in get_args(hint) if isinstance(info, FieldInfo)), None)
    return Annotated[hint | None, Field(description=described)], None  # `_complete` asks for it


SECTIONS = _sections()

if TYPE_CHECKING:
    AlgorithmConfig = AlgorithmSection
else:
    AlgorithmConfig = Annotated[Union[tuple(SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007
