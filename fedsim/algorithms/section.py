"""The fields that a scenario or an offer has for an algorithm, made from those of its dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

from pydantic import Field, create_model, model_validator
from pydantic.fields import FieldInfo

from fedsim.algorithms.quantile_clip import QuantileClip
from fedsim.algorithms.registry import algorithm_class
from fedsim.common.errors import InputError
from fedsim.common.plugins import short
from fedsim.common.section import Section, validated
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, traits

NOT_NUMBERS = ("name", "parameters")  # fields of a section that are none of the algorithm's
AUTO: Literal["auto"] = "auto"
"""Stands for a number that follows from declared ranges, sizes and budgets (`fedsim.scenario.automatic`)."""
THEOREM: Literal["theorem"] = "theorem"
"""Stands for the clip of a theorem on heavy tails (`fedsim.theory.heavy_tails`)."""
_AUTOMATIC = ("num_rounds", "step_size", "clip_norm", "moment_clip", "steps")


class AlgorithmSection(Section):
    """An algorithm's public numbers."""

    required: ClassVar[tuple[str, ...]] = ()
    made_from: ClassVar[type[Algorithm]]
    name: str
    parameters: Literal["given", "theorem"] = Field(
        "given", description="theorem: numbers that are not given are those of the algorithm's theorem"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        values = dict(self)
        absent = [key for key in self.required if values[key] is None]
        if self.parameters == "given" and absent:
            hint = "is required: a number, or auto" if absent[0] in _AUTOMATIC else "is required"
            raise InputError(absent[0], None, hint)
        if self.parameters == "theorem" and self.private_clip is not None:
            hint = "given: a theorem is of one clip, and clip_norm is a quantile"
            raise InputError("parameters", self.parameters, hint)
        return self

    @property
    def private_clip(self) -> QuantileClip | None:
        """The rule of a clip that is chosen as the run goes."""
        rule = traits(self).clip_norm
        return rule if isinstance(rule, QuantileClip) else None

    @property
    def kind(self) -> type[Algorithm]:
        """The algorithm's class."""
        return self.made_from

    def build(self) -> Algorithm:
        """The algorithm itself; InputError if a number is missing or the algorithm refuses it."""
        values = {key: value for key, value in dict(self).items() if key not in NOT_NUMBERS}
        for key in self.required:
            if values[key] is None:
                hint = "is required: the theorem does not set it"
                raise InputError(f"scenario.algorithm.{key}", None, hint)
            if values[key] in (AUTO, THEOREM):
                hint = f"a number here: {values[key]} needs a scenario's data and budgets"
                raise InputError(f"scenario.algorithm.{key}", values[key], hint)
        rule = self.private_clip
        try:
            if rule is None:
                return self.kind(**values)
            return rule.around(self.kind(**values | {"clip_norm": rule.start}))
        except InputError as error:
            raise InputError(f"scenario.algorithm.{error.field}", error.value, error.hint) from None
        except Exception as error:
            Blame(self.kind).failed("its numbers", error)

    def having(self, **numbers: Any) -> Self:
        """The same with other numbers."""
        return self.model_copy(update=numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        """The class is made when fedsim is imported, so it travels by its name."""
        return _restored, (self.name, dict(self))


class Unchosen(AlgorithmSection):
    """Stands for the algorithm that public numbers choose (`fedsim.scenario.chosen`)."""

    name: Literal["auto"] = AUTO
    parameters: Literal["given"] = "given"
    num_rounds: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(AUTO, description="of whichever it is")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, given: Any) -> Any:
        known = (*NOT_NUMBERS, "num_rounds")
        if isinstance(given, Mapping) and (more := [key for key in given if key not in known]):
            hint = "left out, or algorithm.name the name of one: auto chooses the numbers with the algorithm"
            raise InputError(more[0], given[more[0]], hint)
        return given

    @property
    def kind(self) -> type[Algorithm]:
        """One of those that may be chosen: what one of them goes with, all do."""
        return algorithm_class("accelerated_minibatch_sgd")


def algorithm_of(given: Mapping[str, Any]) -> Algorithm:
    """The algorithm with these numbers, by its name; InputError if one is missing or out of bounds."""
    return validated(section_of(str(given.get("name"))), "algorithm", given).build()


def _restored(name: str, values: dict[str, Any]) -> AlgorithmSection:
    return section_of(name)(**values)


def section_of(name: str) -> type[AlgorithmSection]:
    """The section of the algorithm of this name; InputError if a scenario cannot hold its fields."""
    return Unchosen if name == AUTO else _section(name, algorithm_class(name))


@cache
def _section(name: str, kind: type[Algorithm]) -> type[AlgorithmSection]:
    try:
        return _made(name, kind)
    except Exception as error:  # a plug-in's field may be anything
        hint = f"fields that a scenario can hold ({type(error).__name__}: {error})"
        raise InputError(f"algorithm {name}", kind.__qualname__, hint) from error


def _made(name: str, kind: type[Algorithm]) -> type[AlgorithmSection]:
    hints = get_type_hints(kind, include_extras=True)
    members: dict[str, Any] = {"name": (Literal[name], Field(description="the algorithm"))}
    for field in fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        hint = _or_auto(hint, field.name) if field.name in _AUTOMATIC else hint
        required = (
            Annotated[hint | None, Field(description=_described(hint))],
            None,
        )  # `_complete` asks for it
        members[field.name] = required if field.default is MISSING else (hint, field.default)
    model = create_model(short(name), __base__=AlgorithmSection, __doc__=kind.__doc__, **members)
    model.made_from = kind
    model.required = tuple(f.name for f in fields(kind) if f.default is MISSING)  # type: ignore[arg-type]
    by_theorem: Any = {"properties": {"parameters": {"const": "theorem"}}, "required": ["parameters"]}
    model.model_config["json_schema_extra"] = {"if": by_theorem, "else": {"required": list(model.required)}}
    return model


def _described(hint: Any) -> str | None:
    return next((info.description for info in get_args(hint) if isinstance(info, FieldInfo)), None)


def _or_auto(hint: Any, name: str) -> Any:
    described = f"{_described(hint) or 'a number'}; auto: by declared ranges"
    if name == "clip_norm":
        described += "; theorem: of heavy tails, by assumptions.moment and moment_bound"
        described += "; or {quantile, rounds, share}: found privately as the run goes"
        return Annotated[hint | Literal["auto", "theorem"] | QuantileClip, Field(description=described)]
    return Annotated[hint | Literal["auto"], Field(description=described)]
