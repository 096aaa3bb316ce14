"""The base of every configuration model of this package."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen, finite, and strict about unknown keys.

    `schema` is a word of the YAML file and a method of pydantic's models, so that field has an alias; dumps
    use the alias and either name is read, so a resolved scenario reads back.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        serialize_by_alias=True,
    )
