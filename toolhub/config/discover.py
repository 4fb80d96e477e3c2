"""Find the MCP servers that other programs on this machine are configured with, as entries of toolhub's config.

The places are those that the programs document: Claude Desktop and Claude Code (modelcontextprotocol.io, docs of Claude
Code), Cursor (cursor.com/docs), VS Code (code.visualstudio.com/docs/copilot/reference/mcp-configuration), and MiroFlow
and MiroThinker (their repositories).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from toolhub.config.desktop import read_entry
from toolhub.config.document import read_document
from toolhub.config.interpolate import map_texts, texts
from toolhub.config.load import parse_server
from toolhub.config.redact import named_secrets, secret_arguments
from toolhub.config.rules import LONGEST_NAME, transport_of
from toolhub.errors import ConfigError

Json = dict[str, Any]

_MAX_BYTES = 16 << 20
_REQUIRED_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
# VS Code allows comments in JSON, and a comma before a closing bracket. A string may contain both. Each pattern takes
# linear time on any text: where a string or a comment begins, it always matches, if need be up to the end of the text.
_STRING = r'("(?:\\.?|[^"\\])*(?:"|\Z))'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)


@dataclass(frozen=True)
class FoundServer:
    """data: the entry in toolhub's keys. notes: what a reader should know about it, such as keys that were left out."""

    name: str
    data: Json
    notes: tuple[str, ...] = ()

    @property
    def plain_secrets(self) -> list[str]:
        """Where the entry contains a secret itself, not a reference to it: `env.API_KEY`."""
        sections = [(name, self.data.get(name) or {}) for name in ("env", "headers")]
        sections.append(("url", dict(parse_qsl(urlsplit(str(self.data.get("url") or "")).query))))
        found = [f"{section}.{key}" for section, values in sections for key in values if _is_secret(key, values[key])]
        arguments = [str(argument) for argument in self.data.get("args") or ()]
        return found + (["args"] if any("${" not in secret for secret in secret_arguments(arguments)) else [])

    @property
    def variables(self) -> set[str]:
        """The environment variables that must be set."""
        return {name for _, text in texts(self.data) for name in _REQUIRED_VARIABLE.findall(text)}


@dataclass(frozen=True)
class FoundConfig:
    """A program's config. problem: why it could not be read; "" if it was."""

    program: str
    path: Path
    servers: tuple[FoundServer, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class ConfigLocation:
    """Where a program keeps its servers. read: returns them by name, from a file or a folder."""

    program: str
    path: Path
    read: Callable[[Path], Mapping[str, Any]]


def places(
    home: Path, folder: Path, *, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[ConfigLocation]:
    """Return every place to look in: those of a user with this home, and those of a project in this folder."""
    settings = home / "Library/Application Support"
    if platform != "darwin":
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")

    def of_project(path: Path) -> Json:
        projects = _read_json(path).get("projects") or {}
        return dict((projects.get(str(folder)) or {}).get("mcpServers") or {})

    return [
        ConfigLocation("Claude Desktop", settings / "Claude/claude_desktop_config.json", _servers_of("mcpServers")),
        ConfigLocation("Cursor", home / ".cursor/mcp.json", _servers_of("mcpServers")),
        ConfigLocation("Cursor", folder / ".cursor/mcp.json", _servers_of("mcpServers")),
        ConfigLocation("VS Code", settings / "Code/User/mcp.json", _servers_of("servers")),
        ConfigLocation("VS Code", folder / ".vscode/mcp.json", _servers_of("servers")),
        ConfigLocation("Claude Code", home / ".claude.json", _servers_of("mcpServers")),
        ConfigLocation("Claude Code", home / ".claude.json", of_project),
        ConfigLocation("Claude Code", folder / ".mcp.json", _servers_of("mcpServers")),
        ConfigLocation("MiroFlow", folder / "config/tool", _miroflow_tools),
    ]


def find_configs(home: Path, folder: Path) -> list[FoundConfig]:
    """Return the configs with servers, and those that cannot be read."""
    found = [_look_into(place, home, folder) for place in places(home, folder) if place.path.exists()]
    return [config for config in found if config.servers or config.problem]


def find_mirothinker(folder: Path) -> Path | None:
    """Return the folder of MiroThinker's agents, if this folder is a checkout of it or its application."""
    agents = (folder / "apps/miroflow-agent/conf/agent", folder / "conf/agent")
    return next((path for path in agents if any(path.glob("mirothinker_*.yaml"))), None)


def _look_into(place: ConfigLocation, home: Path, folder: Path) -> FoundConfig:
    try:
        servers = place.read(place.path)
        found = (_translate(name, entry, home, folder) for name, entry in servers.items())
        return FoundConfig(place.program, place.path, tuple(server for server in found if server is not None))
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError, ConfigError) as exc:
        first_line = (str(exc) or type(exc).__name__).splitlines()[0]
        return FoundConfig(place.program, place.path, problem=f"cannot be read: {first_line}")


def _servers_of(key: str) -> Callable[[Path], Mapping[str, Any]]:
    return lambda path: _read_json(path).get(key) or {}


def _read_json(path: Path) -> Json:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    text = path.read_text(encoding="utf-8-sig")
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda match: match[1] or "", text)
    data = json.loads(text) if text.strip() else {}
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def _miroflow_tools(folder: Path) -> Json:
    """MiroFlow has a file for each server, with OmegaConf's references. It starts them in its own folder."""
    checkout = folder.parents[1]
    python = checkout / ".venv/bin/python"
    servers = {}
    for path in sorted(folder.glob("*.yaml")):
        tool = read_document(path).data
        program = tool["tool_command"]
        servers[str(tool["name"])] = {
            "command": str(python) if program == "python" and python.exists() else program,
            "args": tool.get("args") or [],
            "env": tool.get("env") or {},
            "cwd": str(checkout),
        }
    return servers


def _translate(name: str, entry: Any, home: Path, folder: Path) -> FoundServer | None:
    """Return the server in toolhub's keys; None for toolhub itself, which would start itself without end."""
    given = {key: value for key, value in dict(entry).items() if value is not None}
    words = [str(given.get("command", "")), *map(str, given.get("args") or ())]
    if "stdio" in words and any(Path(word).name == "toolhub" for word in words):
        return None
    read = read_entry(given, is_desktop=True)
    left_out = sorted({str(problem.key[0]) for problem in read.problems if problem.key})
    notes = [f"left out: {', '.join(left_out)}"] if left_out else []
    change = _reference_changer(home, folder)
    data = {key: map_texts(value, lambda _, text: change(text)) for key, value in read.data.items() if value != {}}
    if (named := transport_of(data)) == transport_of({**data, "transport": None}):
        data.pop("transport", None)
    else:
        data["transport"] = named
    safe_name = re.sub(r"[^\w.@+-]+", "-", name)[:LONGEST_NAME] or "server"
    try:
        parse_server(safe_name, data, environ=_EverySet())
    except ConfigError as exc:
        data["disabled"] = True
        notes.append(f"disabled, because it cannot be used as it is: {exc.reason.splitlines()[0]}")
    return FoundServer(safe_name, data, tuple(notes))


def _reference_changer(home: Path, folder: Path) -> Callable[[str], str]:
    """Return a function that replaces the references of editors and of OmegaConf by values or by toolhub's."""
    known = {"workspaceFolder": str(folder), "userHome": str(home), "workspaceFolderBasename": folder.name}
    known |= {"pathSeparator": os.sep, "/": os.sep}

    def replace(match: re.Match[str]) -> str:
        body = match[1]
        if body in known:
            return known[body]
        if body.startswith("env:"):
            return "${" + body.removeprefix("env:") + "}"
        if body.startswith("input:"):
            return "${" + re.sub(r"\W+", "_", body.removeprefix("input:")).upper() + "}"
        if body.startswith("oc.env:"):
            variable, comma, default = body.removeprefix("oc.env:").partition(",")
            return "${" + variable + (f":-{default}" if comma else "") + "}"
        return match[0]

    return lambda text: re.sub(r"\$\{([^{}]*)\}", replace, text)


def _is_secret(name: str, value: Any) -> bool:
    return any("${" not in secret for secret in named_secrets({name: str(value)}))


class _EverySet(dict[str, str]):
    """An environment in which every variable is set, so that only other problems of an entry show."""

    def get(self, name: str, default: Any = None) -> str:
        return "http://127.0.0.1"
