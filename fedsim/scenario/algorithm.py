"""The `algorithm` section: one model per algorithm, made from the fields of its dataclass."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_type_hints

from pydantic import ConfigDict, Field, PrivateAttr, SerializeAsAny, create_model, model_validator
from pydantic.fields import FieldInfo

from fedsim.algorithms.registry import ALGORITHM_HAS, algorithms, is_algorithm
from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.protocol.batch import Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm


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
            raise InputError(absent[0], None, "is required")
        return self

    @property
    def kind(self) -> type[Algorithm]:
        """The algorithm's class."""
        return algorithms()[self.name]

    def build(self) -> Algorithm:
        """The algorithm itself.

        Raises:
            InputError: a number is still to be filled in by a theorem, or it finds its numbers at odds.
        """
        values = {key: getattr(self, key) for key in type(self).model_fields if key not in _OWN}
        for key in self.required:
            if values[key] is None:
                hint = "is required: the theorem does not set it"
                raise InputError(f"scenario.algorithm.{key}", None, hint)
        try:
            return self.kind(**values)
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


def _restored(name: str, values: dict[str, Any]) -> AlgorithmSection:
    return SECTIONS[name](**values)


_OWN = ("name", "parameters")


class GivenAlgorithm(AlgorithmSection):
    """An algorithm that was given as an object. As text it is its class's name and its numbers, to be read by
    people only; where it travels, the object does.
    """

    model_config = ConfigDict(extra="allow")
    _object: Algorithm = PrivateAttr()

    @classmethod
    def of(cls, algorithm: Algorithm) -> Self:
        """The section that stands for an object.

        Raises:
            InputError: it is no algorithm.
        """
        kind = type(algorithm)
        if isinstance(algorithm, type):
            hint = f"is a class: give an object of it, {algorithm.__name__}(...) with its numbers"
            raise InputError("algorithm", algorithm, hint)
        if not is_algorithm(kind):
            raise InputError("algorithm", algorithm, f"must be a dataclass's object with {ALGORITHM_HAS}")
        values = {field.name: getattr(algorithm, field.name) for field in fields(kind)}  # type: ignore[arg-type]
        name = next((name for name, known in algorithms().items() if known is kind), kind.__name__)
        section = cls(name=name, **{key: _plain(value) for key, value in values.items() if key not in _OWN})
        section._object = algorithm
        return section

    @property
    def kind(self) -> type[Algorithm]:
        """The object's class."""
        return type(self._object)

    def build(self) -> Algorithm:
        """The object itself."""
        return self._object

    def having(self, **numbers: Any) -> Self:
        """See the class: the object has them too."""
        return self.of(replace(self._object, **numbers))  # type: ignore[type-var]

    def __reduce__(self) -> tuple[Any, ...]:
        """See the class."""
        return type(self).of, (self._object,)


def _plain(value: Any) -> Any:
    if isinstance(value, Full | Subsample | WithReplacement | Poisson | Fresh):
        return {"sampler": value.sampler, **asdict(value)}
    return value if isinstance(value, bool | int | float | str | None) else str(value)


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
            hint = f"fields that a scenario can hold ({type(error).__name__}: {error})"
            raise InputError(f"algorithm {name}", kind.__qualname__, hint) from error
    return made


def _member(hint: Any, default: Any) -> tuple[Any, Any]:
    if default is not MISSING:
        return hint, default
    described = next((info.description for info in get_args(hint) if isinstance(info, FieldInfo)), None)
    return Annotated[hint | None, Field(description=described)], None  # `_complete` asks for it


SECTIONS = _sections()

if TYPE_CHECKING:
    AlgorithmConfig = AlgorithmSection
else:
    AlgorithmConfig = SerializeAsAny[  # an object's section too
        Annotated[Union[tuple(SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007
    ]
