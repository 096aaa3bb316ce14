"""The base of every section of a scenario."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedsim.common.choice import Choice


class Section(BaseModel):
    """Frozen, finite, and strict about unknown keys; so are the plain dataclasses that stand in one.

    A field whose name in YAML is a method of pydantic's models, such as `schema`, has an alias: dumps use the
    alias and either name is read, so that a resolved scenario reads back.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        serialize_by_alias=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The default of a choice, as a person would write it."""
        made = handler(schema)
        properties = handler.resolve_ref_schema(made)["properties"]
        for name, info in cls.model_fields.items():
            for choice in (each for each in info.metadata if isinstance(each, Choice)):
                properties[name]["default"] = {choice.key: getattr(info.default, choice.key)}
        return made
