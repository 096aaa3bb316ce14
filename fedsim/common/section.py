"""The base of every section of a scenario."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, finite, and strict about unknown keys.

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
