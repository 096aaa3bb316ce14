"""Parts by their names: only the one that is asked for is imported, be it of a table or of a field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args

from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import PydanticKnownError, core_schema

from fedsim.common.choice import Choice, Node
from fedsim.common.section import Section

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo
    from pydantic_core import CoreSchema

T = TypeVar("T")


def imported(place: str) -> Any:
    """What a module has, by "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Mapping[str, T]):
    """{name: part}: the names are known, and a part is loaded when it is first asked for.

    >>> parts = Registry.of("os", {"join": "path:join", "other": "no_such_module:other"})
    >>> list(parts), parts["join"]("a", "b")
    (['join', 'other'], 'a/b')
    """

    def __init__(self, names: Collection[str], load: Callable[[str], T]) -> None:
        self._names, self._load = dict.fromkeys(names), cache(load)

    @classmethod
    def of(cls, package: str, places: Mapping[str, str]) -> Registry[Any]:
        """Parts of one package, {name: "module:attribute"}."""
        return cls(places, lambda name: imported(f"{package}.{places[name]}"))

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def kinds(choice: Any) -> dict[str, type]:
    """{name: class} of a union that is annotated with `Choice`, in its order.

    >>> from typing import Annotated, ClassVar
    >>> class Cat:
    ...     name: ClassVar[str] = "cat"
    >>> class Dog:
    ...     name: ClassVar[str] = "dog"
    >>> list(kinds(Annotated[Cat | Dog, Choice()]))
    ['cat', 'dog']
    """
    union, *annotations = get_args(choice)
    choice = next(each for each in annotations if isinstance(each, Choice))
    return {choice.name(kind): kind for kind in get_args(union)}


@dataclass(frozen=True, eq=False)
class OneOf:
    """Annotation: the field is a section of `kinds`, of which the mapping's `name` chooses one.

    It validates and complains as a union that is discriminated by `name`, whose JSON schema it has.
    """

    kinds: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._chosen)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Node:
        union: Any = Union[tuple(self.kinds.values())]  # noqa: UP007
        return handler(TypeAdapter(Annotated[union, Field(discriminator="name")]).core_schema)

    def _chosen(self, value: Any) -> Any:
        if not isinstance(value, Mapping | BaseModel):
            raise PydanticKnownError("model_attributes_type")
        given = dict(value)
        if "name" not in given:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'name'"})
        if not isinstance(name := given["name"], str) or name not in self.kinds:
            known = ", ".join(map(repr, self.kinds))
            context = {"discriminator": "'name'", "tag": str(name), "expected_tags": known}
            raise PydanticKnownError("union_tag_invalid", context)
        return self.kinds[name].model_validate(value)


@dataclass(frozen=True)
class Later:
    """Annotation: the field is of the type at `place`, "module:attribute", imported when it has a value."""

    place: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self._written, info_arg=True)
        return core_schema.no_info_plain_validator_function(self._read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Node:
        # inside another schema, since the handler leaves out what annotations do to the outermost
        return handler(core_schema.definitions_schema(_adapter(self.place).core_schema, []))

    def _read(self, value: Any) -> Any:
        return _adapter(self.place).validate_python(value)

    def _written(self, value: Any, info: SerializationInfo) -> Any:
        mode: Any = info.mode
        flags = "exclude_none", "exclude_defaults", "exclude_unset"
        return _adapter(self.place).dump_python(
            value, mode=mode, **{name: getattr(info, name) for name in flags}
        )


@cache
def _adapter(place: str) -> TypeAdapter[Any]:
    kind = imported(place)
    model = isinstance(getattr(kind, "__origin__", kind), type(BaseModel))  # which has its own
    return TypeAdapter(kind, config=None if model else Section.model_config)
