"""The generated parts of the reference: config, command line, HTTP, metrics, Python. Each function returns Markdown."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import anyio
import typer
from prometheus_client.core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

from toolhub.cli.app import add_installed_commands, app
from toolhub.config import Config, ServerSpec
from toolhub.config.models import HubSettings
from toolhub.config.schema import field_doc
from toolhub.config.section import Section
from toolhub.hub import Hub
from toolhub.serve.api import TaskApi
from toolhub.serve.metrics import HubCollector
from toolhub.serve.openapi import describe
from toolhub.serve.rollouts import Rollouts

PYTHON = {
    "toolhub": "The public surface. `Hub` runs in your process (extra `hub`); `connect()` needs only the base install.",
    "toolhub.client": "What `connect()` returns, and what it raises beyond the errors of `toolhub`.",
    "toolhub.miroflow": "The drop-in for MiroFlow and MiroThinker. It needs only the base install.",
    "toolhub_sandbox": "Sandboxes, in a hub or alone.",
    "toolhub_agent": "The agent loop and its parts (extra `agent`).",
}
"""Packages whose `__all__` is public, in the order of the page."""


# --- config ---------------------------------------------------------------------------------------------------------


def config() -> str:
    """A table per section of the config, with the default, the bounds and the meaning of every key."""
    return "\n".join(_tables())


def sections(model: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every section with its dotted path, in the order of the page."""
    yield prefix, model
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}".lstrip(".")
        for inner, suffix in _inner(field.annotation):
            yield from sections(inner, path + suffix)


def _tables() -> Iterator[str]:
    for path, section in sections():
        yield f"{'###' if '.' in path else '##'} {f'`{path}`' if path else 'The top'}\n"
        if section.__doc__:
            yield _markdown(section.__doc__) + "\n"
        yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
        for name, field in section.model_fields.items():
            if section is ServerSpec and name == "name":
                continue
            meaning = field_doc(section, name).replace("None:", "`null`:")
            kind = _type_of(field)
            for _, suffix in _inner(field.annotation):
                anchor = re.sub(r"\W+", "-", f"{path}.{name}{suffix}").strip("-").replace("_", "-")
                kind = kind.replace("section", f"[section](#{anchor})")
            yield f"| `{name}` | {_cell(kind)} | {_cell(_default_of(field))} | {_cell(meaning + _size(field))} |"
        yield ""


def _inner(annotation: Any) -> Iterator[tuple[type[Section], str]]:
    """The sections within a type, with what stands for a mapping's key."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, ""
    for part in get_args(annotation):
        for inner, suffix in _inner(part):
            yield inner, (".<name>" if get_origin(annotation) is dict else "") + suffix


def _type_of(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {value:g}"
        for item in (*field.metadata, *_metadata(field.annotation))
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if (value := getattr(item, name, None)) is not None
    ]
    return ", ".join([_type_text(field.annotation), *dict.fromkeys(bounds)])


def _metadata(annotation: Any) -> Iterator[Any]:
    """What stands beside a type in `Annotated`, also within a union."""
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            yield from item.metadata if isinstance(item, FieldInfo) else [item]
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _type_text(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(parts[0])
    if origin is Literal:
        return " · ".join(f"`{part}`" for part in parts)
    if origin is list:
        return f"list of {_type_text(parts[0])}"
    if origin is dict:
        return f"mapping to {_type_text(parts[1])}"
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in parts if part is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    known = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "any value", Path: "path"}
    return known.get(annotation, "text")


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required" if field is not ServerSpec.model_fields["transport"] else "see there"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or isinstance(default, Section):
        return ""
    if default is None:
        return "`null`"
    return f"`{json.dumps(default, default=str, ensure_ascii=False)}`"


def _size(field: FieldInfo) -> str:
    """Large sizes in words."""
    value = field.default
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f" ({value >> 20:,} MiB)"
    return ""


# --- command line ---------------------------------------------------------------------------------------------------


def command_line() -> str:
    """The commands as typer describes them."""
    if not any(command.name == "run" for command in app.registered_commands):
        add_installed_commands()
    command = typer.main.get_command(app)
    _show_examples(command)
    text = str(get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="toolhub"), name="toolhub"))
    _, _, rest = text.partition("\n")  # the page has a title of its own
    return re.sub(r"^\*\*(\w+)\*\*:$", r"*\1*:", rest, flags=re.MULTILINE)


def _show_examples(command: Any) -> None:
    """Make a block of code of each command's examples, and show the whole first line of its help in the list."""
    if command.epilog:
        command.epilog = f"*Examples*:\n\n```sh\n{command.epilog.strip()}\n```"
    command.short_help = (command.help or "").partition("\n")[0]
    for inner in getattr(command, "commands", {}).values():
        _show_examples(inner)


# --- HTTP -----------------------------------------------------------------------------------------------------------


def http() -> str:
    """The task API as /openapi.json describes it."""
    hub = Hub(Config())
    lease = hub.config.limits.task_lease_s
    routes = [*TaskApi(hub, allow_inline=False, lease=lease).routes(), *Rollouts(hub, lease=lease).routes()]
    document = describe(routes, "")
    lines = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## `{method.upper()} {path}`", "", operation["summary"], ""]
            for parameter in operation.get("parameters", ()):
                kind = parameter["schema"]["type"]
                lines.append(f"- `{parameter['name']}` ({parameter['in']}, {kind})")
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                lines += ["", *_body(reference.rsplit("/", 1)[1])]
            lines.append("")
    return "\n".join(lines)


def _body(name: str) -> Iterator[str]:
    model: type[BaseModel] = getattr(importlib.import_module("toolhub.serve.openapi"), name)
    yield f"Body, JSON. {_markdown(model.__doc__ or '')}\n"
    yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
    for field_name, field in model.model_fields.items():
        meaning = field_doc(model, field_name)
        yield f"| `{field_name}` | {_cell(_type_of(field))} | {_cell(_default_of(field))} | {_cell(meaning)} |"


def metrics() -> str:
    """What /metrics of a hub says about itself."""

    async def collect() -> list[Metric]:
        async with Hub(Config(hub=HubSettings(max_starts=1))) as hub:
            return list(HubCollector(hub, []).collect())

    rows = [f"| `{metric.name}` | {metric.type} | {metric.documentation} |" for metric in anyio.run(collect)]
    return "\n".join(["| metric | kind | meaning |", "| --- | --- | --- |", *sorted(rows)])


# --- Python ---------------------------------------------------------------------------------------------------------


def python() -> str:
    """Everything public, from signatures and docstrings."""
    lines: list[str] = []
    places: dict[int, str] = {}
    for package, about in PYTHON.items():
        module = importlib.import_module(package)
        lines += [f"## `{package}`", "", about, ""]
        for name in sorted(module.__all__, key=str.lower):
            thing = getattr(module, name)
            if place := places.get(id(thing)):
                lines += [f"`{package}.{name}` is `{place}`, above.", ""]
            else:
                lines += [*_documented(package, name, thing), ""]
                places[id(thing)] = f"{package}.{name}"
    return "\n".join(lines)


def _documented(package: str, name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        yield f":::::{{py:{kind}}} {package}.{name}{_signature(thing)}"
        yield _docstring(thing)
        if kind == "exception":
            yield f"\n[Causes and fixes](../errors.md#{name.lower()})."
        if not issubclass(thing, BaseModel | enum.Enum):
            for member in _members(thing):
                yield from member
        yield ":::::"
    elif callable(thing):
        yield f":::::{{py:function}} {package}.{name}{_signature(thing)}"
        yield _docstring(thing)
        yield ":::::"
    else:
        yield f":::::{{py:data}} {package}.{name}\n:::::"


def _members(cls: type) -> Iterator[list[str]]:
    for name, member in sorted(cls.__dict__.items()):
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            yield [f"::::{{py:property}} {name}", _docstring(member), "::::"]
        elif inspect.isfunction(member):
            prefix = ":async:\n" if inspect.iscoroutinefunction(member) else ""
            yield [f"::::{{py:method}} {name}{_signature(member, skip_self=True)}", prefix, _docstring(member), "::::"]


def _signature(thing: Callable[..., Any], *, skip_self: bool = False) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # a class that adds nothing to `Exception`
        return ""
    if isinstance(thing, type) and issubclass(thing, BaseModel | enum.Enum):
        return ""  # its fields are in the reference of the config
    if isinstance(thing, type) and getattr(thing, "_is_protocol", False):
        return ""
    parameters = list(signature.parameters.values())[1 if skip_self else 0 :]
    returns = inspect.Signature.empty if isinstance(thing, type) else signature.return_annotation
    text = str(signature.replace(parameters=parameters, return_annotation=returns))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are texts, because they are not evaluated
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    return re.sub(r"<factory>|<object object at \w+>", "...", text)


def _docstring(thing: Any) -> str:
    doc = inspect.getdoc(thing) or ""
    if isinstance(thing, type) and doc.startswith(f"{thing.__name__}("):
        doc = ""  # what `dataclass` writes where there is no docstring
    return _markdown(doc)


def _markdown(doc: str) -> str:
    """A docstring as Markdown: lines such as `timeout: seconds.` and `Raises X ...` become a list."""
    blocks = []
    for block in inspect.cleandoc(doc).split("\n\n"):
        if all(line.startswith("    ") for line in block.splitlines() if line):
            blocks.append(block)  # indented code
            continue
        blocks.append(re.sub(r"^(?=(?:\w+: |Raises ))", "- ", block, flags=re.MULTILINE))
    text = "\n\n".join(blocks).replace("``", "`")
    # A list needs a blank line before it if the text above is no list.
    return re.sub(r"^((?!- |  ).*\S.*)\n(- )", r"\1\n\n\2", text, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PARTS: dict[str, Callable[[], str]] = {
    "config": config,
    "cli": command_line,
    "http": http,
    "metrics": metrics,
    "python": python,
}
"""By the name in a page's mark, `<!-- generate: config -->`."""
