"""Annotations of fields that a file may give: pydantic reads them, and is loaded, when a file is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema
    from pydantic_core.core_schema import SerializerFunctionWrapHandler

Node = dict[str, Any]  # of a JSON schema


@dataclass(frozen=True)
class Choice:
    """Annotation of a union of dataclasses: a mapping's `key` names one of them.

    Each dataclass has its name as a class attribute `key`. It is no field: it is read before the fields are,
    and written beside them.
    """

    key: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A union by name, each member without the name."""
        from pydantic_core import core_schema

        return core_schema.tagged_union_schema(
            {
                self.name(kind): core_schema.no_info_before_validator_function(
                    self._unnamed, handler.generate_schema(kind)
                )
                for kind in get_args(source)
            },
            self.key,
            serialization=core_schema.wrap_serializer_function_ser_schema(self._named),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Node:
        """The members' schemas, each with its name among the properties."""
        made = handler(schema)
        for name, reference in made["discriminator"]["mapping"].items():
            member = handler.resolve_ref_schema({"$ref": reference})
            named = {self.key: {"const": name, "type": "string"}}
            member["properties"] = named | member.get("properties", {})
            member["required"] = [self.key, *(k for k in member.get("required", []) if k != self.key)]
        return made

    def _unnamed(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if key != self.key}

    def _named(self, value: Any, handler: SerializerFunctionWrapHandler) -> Any:
        return {self.key: self.name(value)} | handler(value)

    def name(self, kind: Any) -> str:
        """The name of a dataclass of the union, or of an object of it."""
        return getattr(kind, self.key)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Shorthand:
    """Annotation: a text stands for a mapping that has it under `key` and nothing else.

    `participation: all` is short for `participation: {name: all}`, in a scenario and in its schema.
    """

    key: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Expand the text, then validate as before."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self._expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Node:
        """The mapping's schema, or a text; which texts suffice is left to validation."""
        return {"anyOf": [{"type": "string"}, handler(schema)]}

    def _expand(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, str) else value


@dataclass(frozen=True)
class Setting:
    """Annotation: in a file the field is of the type that a `module` has under this name, bounds included."""

    name: str
    module: str = "fedsim.protocol.settings"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """That type's."""
        return handler.generate_schema(getattr(import_module(self.module), self.name))
