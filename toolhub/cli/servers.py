"""`toolhub servers`: the builtin servers of the installed packages, or the servers of a config. None is started."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape

from toolhub.catalog.store import CatalogStore
from toolhub.cli.shared import console, print_json, read_config, run
from toolhub.config import Config, ServerSpec, redact
from toolhub.extensions import builtin_servers, find_builtin

# Parameters of a factory that only Python code can give, not a config.
_NOT_IN_A_CONFIG = frozenset({"context", "now", "renderer", "settings"})


@dataclass(frozen=True)
class Builtin:
    """options: defaults by name; `serper.api_key` is the key `api_key` in the section `serper`.

    problem: why the server cannot be created here, for example because a package is missing. It then has no tools.
    """

    name: str
    builtin: str
    description: str = ""
    tools: tuple[str, ...] = ()
    options: dict[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class ConfiguredServer:
    """tools: those that are known without a start; None: not known."""

    name: str
    reach: str
    share: str
    tools: tuple[str, ...] | None = None


def list_servers(path: Path | None, as_json: bool) -> None:
    """Print every builtin server of the installed packages, or with a path every server of that config."""
    found = run(find_servers) if path is None else run(functools.partial(_find_configured, read_config(path)))
    if as_json:
        print_json([asdict(server) for server in found])
        return
    out = console()
    for server in found:
        if isinstance(server, ConfiguredServer):
            _print_configured(out, server)
        else:
            _print(out, server)
    if path is None:
        out.print("In a config: `clock: {builtin: clock}`. Every option, also of sections such as web.*, is in --json.")


async def _find_configured(config: Config) -> list[ConfiguredServer]:
    return [
        ConfiguredServer(spec.name, _reach(spec), spec.share, await known_tools(config, spec))
        for spec in config.servers.values()
    ]


def _reach(spec: ServerSpec) -> str:
    return f"builtin {spec.builtin}" if spec.builtin else spec.command_line or redact(spec.url or "", spec.secrets)


async def known_tools(config: Config, spec: ServerSpec) -> tuple[str, ...] | None:
    """Return the tools of a server that clients may call, without starting it; None if they are not known.

    A builtin server is asked. What another server has listed is known from its last start.
    """
    if spec.builtin is not None:
        found = await _look_at(spec.name, spec.builtin)
        names = None if found.problem else found.tools
    else:
        saved = CatalogStore(config.hub.state_path / "catalog").read(spec)
        names = None if saved is None else tuple(str(tool["name"]) for tool in saved)
    allowed = spec.tools.allow
    return names and tuple(
        name for name in names if name not in spec.tools.deny and (allowed is None or name in allowed)
    )


async def find_servers() -> list[Builtin]:
    """Create each builtin server once, without starting it, and return what it offers."""
    return [await _look_at(name, target) for name, target in sorted(builtin_servers().items())]


async def _look_at(name: str, target: str) -> Builtin:
    module_name, factory = find_builtin(target)
    try:
        module = importlib.import_module(module_name)
        create = getattr(module, factory)
    except Exception as exc:  # another package's code may raise anything
        return Builtin(name, target, problem=f"{type(exc).__name__}: {exc}")
    description, _, _ = (inspect.getdoc(module) or "").partition("\n")
    options = options_of(module, create)
    try:
        server = create(**getattr(module, "LISTING_OPTIONS", {}))
        tools = tuple(tool.name for tool in await server.list_tools())
    except Exception as exc:
        return Builtin(name, target, description, options=options, problem=f"{exc}")
    return Builtin(name, target, description, tools, options)


def options_of(module: ModuleType, create: Any) -> dict[str, Any]:
    """The options of a server and their defaults.

    They are the factory's keyword parameters. What it takes as `**options` are the fields of the model `OPTIONS`.
    """
    parameters = inspect.signature(create).parameters.values()
    named = {
        parameter.name: None if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in _NOT_IN_A_CONFIG
    }
    model = getattr(module, "OPTIONS", None)
    return named | (_fields(model.model_construct()) if model is not None else {})


def _fields(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        found |= _fields(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return found


def _print(out: Console, server: Builtin) -> None:
    out.print(f"[bold]{escape(server.name)}[/]  {escape(server.description)}", soft_wrap=True)
    if server.problem is not None:
        out.print(f"  [yellow]not available here:[/] {escape(server.problem)}", soft_wrap=True)
    else:
        out.print(f"  [dim]tools:[/] {escape(', '.join(server.tools))}", soft_wrap=True)
    out.print(f"  [dim]options:[/] {escape(_short(server.options or {}))}\n", soft_wrap=True)


def _print_configured(out: Console, server: ConfiguredServer) -> None:
    tools = "not known before its first start" if server.tools is None else ", ".join(server.tools)
    out.print(
        f"[bold]{escape(server.name)}[/]  {escape(server.reach)}  [dim](share: {server.share})[/]", soft_wrap=True
    )
    out.print(f"  [dim]tools:[/] {escape(tools)}\n", soft_wrap=True)


def _written(value: Any) -> str:
    """A default as a config has it."""
    if value in (None, ""):
        return "none"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _short(options: dict[str, Any]) -> str:
    """The options on one line, sections such as `web` by their name alone."""
    named = dict.fromkeys(
        f"{section}.*" if key else f"{name}={_written(value)}"
        for name, value in options.items()
        for section, _, key in [name.partition(".")]
    )
    return ", ".join(named) or "none"
