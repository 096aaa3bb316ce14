"""`participation: all` is short for `participation: {name: all}`, in a scenario and in its schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Shorthand:
    """Annotation: a text stands for a mapping that has it under `key` and nothing else."""

    key: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Expand the text, then validate as before."""
        return core_schema.no_info_before_validator_function(self._expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The mapping's schema, or a text; which texts suffice is left to validation."""
        return {"anyOf": [{"type": "string"}, handler(schema)]}

    def _expand(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, str) else value
