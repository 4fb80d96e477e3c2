"""The base class of all config sections, and the types of numbers and text in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticKnownError


def _refuse_boolean(kind: Literal["int_type", "float_type"]) -> BeforeValidator:
    """pydantic reads `true` as 1."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(kind)
        return value

    return BeforeValidator(check)


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Seconds = Annotated[float, _refuse_boolean("float_type"), Field(gt=0, allow_inf_nan=False)]
Pause = Annotated[float, _refuse_boolean("float_type"), Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, _refuse_boolean("int_type"), Field(ge=1)]
Length = Annotated[int, _refuse_boolean("int_type"), Field(ge=0)]
Weight = Annotated[float, _refuse_boolean("float_type"), Field(ge=0.01, le=100, allow_inf_nan=False)]
Text = Annotated[
    str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "number", "boolean"]}, mode="validation")
]
"""A string. Numbers and booleans become their text."""


class Section(BaseModel):
    """A frozen model that refuses unknown keys. Its errors do not show values, which may be secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_sections(cls, data: Any) -> Any:
        """Treat an empty section, such as `env:` without a value (null in YAML), as an empty mapping or list."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            name: value
            for name, value in data.items()
            if value is not None or name not in fields or fields[name].default_factory is None
        }
