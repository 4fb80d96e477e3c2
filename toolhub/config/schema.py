"""The JSON schema of a config, for editors. It is made from the models, with their defaults and descriptions."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from toolhub.config.models import Config
from toolhub.config.rules import SPELLINGS
from toolhub.config.section import Section
from toolhub.config.server import ServerSpec, Transport

Json = dict[str, Any]

_NULL: Json = {"type": "null"}
_REFERENCE: Json = {"$ref": "#/$defs/Reference"}
_UNITS = {"_s": "Seconds.", "_bytes": "Bytes.", "_tokens": "Tokens."}
# pydantic leaves a bound under its own name where a validator stands before it.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def config_schema() -> Json:
    """Return the schema. It accepts what `load_config` does, but cannot check rules between keys."""
    schema = Config.model_json_schema()
    definitions: Json = schema.pop("$defs")
    for model in dict.fromkeys(_sections(Config)):
        definition = schema if model is Config else definitions[model.__name__]
        for name, field in model.model_fields.items():
            definition["properties"][name] = _property(model, name, field, definition["properties"][name])
        definition.pop("title")
    server = definitions["ServerSpec"]
    _describe_server(server)
    definitions["Reference"] = {
        "type": "string",
        "pattern": r"\$\{",
        "description": "A value from the environment: ${NAME}, or ${NAME:-default}.",
    }
    schema["properties"]["mcpServers"] = {
        "description": "Servers as desktop clients write them.",
        "type": ["object", "null"],
        "additionalProperties": {"type": "object"},
    }
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "The config of toolhub"}
    return {**head, **schema, "$defs": dict(sorted(definitions.items()))}


def field_doc(cls: type, name: str) -> str:
    """Return the string that follows a field in the source of its class or of a base class; "" if there is none."""
    return next((docs[name] for base in cls.__mro__[:-1] if name in (docs := _field_docs(base))), "")


@cache
def _field_docs(cls: type) -> dict[str, str]:
    if not cls.__module__.startswith("toolhub"):
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _sections(model: type[Section]) -> Iterator[type[Section]]:
    yield model
    for field in model.model_fields.values():
        for inner in _sections_in(field.annotation):
            yield from _sections(inner)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _property(model: type[Section], name: str, field: FieldInfo, found: Json) -> Json:
    """Return a key's schema: what it accepts, its default, and its meaning with the unit."""
    accepted = [_with_bounds(option) for option in found.get("anyOf", [found])]
    about = {key: found[key] for key in ("default",) if key in found}
    if any(_takes_reference(option) for option in accepted):
        accepted.append(_REFERENCE)
    if field.default_factory is not None:
        accepted.append(_NULL)  # an empty section is as good as none
    meaning = field_doc(model, name)
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    if unit.rstrip(".").casefold() not in meaning.casefold():
        meaning = f"{meaning} {unit}".strip()
    if meaning:
        about["description"] = meaning.replace("None:", "null:")
    return {**about, **(accepted[0] if len(accepted) == 1 else {"anyOf": accepted})}


def _with_bounds(option: Json) -> Json:
    return {_BOUNDS.get(key, key): value for key, value in option.items() if key not in ("title", "default")}


def _takes_reference(option: Json) -> bool:
    """Whether a reference stands for a value that is not a string, or one of a few strings."""
    return option.get("type") in ("integer", "number", "boolean") or "enum" in option or "const" in option


def _describe_server(definition: Json) -> None:
    """A server's name is the key of its mapping, and its transport follows from its other keys."""
    properties = definition["properties"]
    del properties["name"]
    del definition["required"]
    transport = {"anyOf": [{"enum": sorted({*get_args(Transport), *SPELLINGS})}, _REFERENCE]}
    properties["transport"] = {"description": field_doc(ServerSpec, "transport"), **transport}
    properties["type"] = {"description": "The same as `transport`.", **transport}
    definition["anyOf"] = [{"required": [name]} for name in ("command", "url", "builtin")]
