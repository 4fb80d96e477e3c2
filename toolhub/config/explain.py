"""Turn pydantic's errors into messages: what was expected, and which kind of value was found. Never the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from toolhub.config.problems import Key, Problem, did_you_mean, kind_of, unknown_key

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "string": "a string",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "dict": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "path": "a path",
}
_BOUNDS = {
    "greater_than": ("gt", "must be greater than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than_equal": ("le", "must be at most"),
}


def validate(model: type[Model], data: Mapping[str, Any], context: object = None) -> tuple[Model | None, list[Problem]]:
    """Return the model, or None and the problems. Their keys are relative to `data`."""
    try:
        return model.model_validate(data, context=context), []
    except ValidationError as error:
        return None, [Problem(_key(item["loc"]), _message(item, model)) for item in error.errors()]


def _key(location: Key) -> Key:
    """pydantic adds `[key]` when a mapping's key itself is wrong."""
    return location[:-1] if location[-1:] == ("[key]",) else location


def _message(item: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(item["loc"][-1], known_keys(_model_at(model, item["loc"][:-1])))
    if kind == "literal_error":
        return _wrong_choice(context["expected"], item["input"])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind.endswith("too_short"):
        return "must not be empty"
    if kind == "value_error":
        return str(context["error"])
    expected = _EXPECTED.get(kind.split("_")[0])
    return f"expected {expected}, found {kind_of(item['input'])}" if expected else item["msg"]


def _wrong_choice(expected: str, found: object) -> str:
    near = did_you_mean(found, re.findall(r"'([^']*)'", expected)) if isinstance(found, str) else ""
    return f"expected {expected}, found {'another string' if isinstance(found, str) else kind_of(found)}" + (
        f";{near}" if near else ""
    )


def known_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section. A server's name is the key of its mapping, so it is not among them."""
    return [name for name in model.model_fields if name != "name"]


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the section of a location. Parts that are no field, such as a server's name, are skipped."""
    for part in location:
        field = model.model_fields.get(str(part))
        model = (field and _section_in(field.annotation)) or model
    return model


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section_in(part) for part in get_args(annotation))
    return next((section for section in found if section), None)
