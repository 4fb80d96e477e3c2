"""`toolhub init` and `toolhub config schema`: help with writing a config."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

import toolhub
from toolhub.cli.shared import DEFAULT_FILES, print_json
from toolhub.config.discover import FoundConfig, FoundServer, find_configs, find_mirothinker
from toolhub.config.schema import config_schema
from toolhub.errors import ConfigError
from toolhub.private_files import write_private

HEAD = """\
# The config of a hub. Check it with `toolhub doctor`, and run the hub with `toolhub serve`.
# `toolhub servers` lists the builtin servers; `toolhub config schema --help` says how an editor helps with the keys.
# ${NAME} is an environment variable; ${NAME:-default} may be unset.
"""
EXAMPLE_SERVERS = """\
servers:
  # A builtin server runs inside the hub.
  clock:
    builtin: clock
    share: hub              # one for all tasks; without this line each task has its own

  # Each task has a database of its own. It ends with the task.
  notes:
    builtin: sqlite

  # A program that speaks MCP over stdin and stdout:
  # files:
  #   command: npx
  #   args: [-y, "@modelcontextprotocol/server-filesystem", .]
  #   env: {API_KEY: "${API_KEY}"}

  # A server elsewhere:
  # remote:
  #   url: https://mcp.example.org/mcp
  #   headers: {Authorization: "Bearer ${REMOTE_TOKEN}"}
"""
FOUND_SERVERS = """\
# What a server may need here (more: `toolhub config schema`):
#   share: hub              one process for all tasks, for servers that keep no state; default: one for each task
#   call_timeout_s: 300     seconds for one call
#   tools: {deny: [name]}   tools that are neither listed nor called
servers:
"""
OPTIONAL = """
# Optional, with the defaults:
# hub:
#   host: 127.0.0.1         # 0.0.0.0: other machines can connect; they need a token
#   port: 8765
# limits:
#   concurrency: 256        # calls at once, of all tasks
#   task_lease_s: 900       # seconds after which the task of a silent client is closed
"""
# In a wheel it lies beside the package's config, in a checkout among the examples.
_PACKAGE = Path(toolhub.__file__).parent
_MIROTHINKER = (_PACKAGE / "config/mirothinker_1.7.yaml", _PACKAGE.parent / "configs/mirothinker_1.7.yaml")


def print_schema() -> None:
    print_json(config_schema())


def write_config(path: Path, *, is_empty: bool, force: bool) -> None:
    """Write a config with the servers that were found, or an example. Print what was found and what comes next."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} must end in .yaml or .yml")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; write another file (toolhub init FILE), or replace it with --force")
    home, folder = Path.home(), Path.cwd()
    configs = [] if is_empty else find_configs(home, folder)
    mirothinker = None if is_empty else find_mirothinker(folder)
    servers = _distinct(configs, home)
    if not is_empty:
        _print_found(configs, mirothinker, home, folder)
    _write(path, _text(servers, mirothinker), force)
    is_example = not servers and not mirothinker
    print(f"Wrote {path}{' with a small example' if is_example else ''}. Only you can read it (mode 0600).")
    if servers:
        print("Read it before you go on, because doctor and serve start the programs in it.")
    _warn_of_secrets(path, servers)
    _print_next(path, servers, is_example=is_example)


def _distinct(configs: list[FoundConfig], home: Path) -> list[FoundServer]:
    """Leave out equal servers. Another server with the same name gets its program's name behind it."""
    chosen: dict[str, FoundServer] = {}
    for config in configs:
        for server in config.servers:
            name, number = server.name, 1
            while name in chosen and chosen[name].data != server.data:
                suffix = config.program.lower().replace(" ", "-") + (f"-{number}" if number > 1 else "")
                name, number = f"{server.name}-{suffix}", number + 1
            source = f"From {config.program}: {_short(config.path, home)}"
            chosen.setdefault(name, FoundServer(name, server.data, (source, *server.notes)))
    return list(chosen.values())


def _print_found(configs: list[FoundConfig], mirothinker: Path | None, home: Path, folder: Path) -> None:
    lines = [
        f"  {config.program}, {_short(config.path, home)}: "
        f"{_printable(config.problem) or ', '.join(server.name for server in config.servers)}"
        for config in configs
    ]
    if mirothinker:
        lines.append(f"  MiroThinker, {_short(mirothinker, home)}: its agents' three servers, as builtins")
    if lines:
        print("Found:", *lines, "", sep="\n")
    else:
        print("Found no servers of Claude Desktop, Claude Code, Cursor, VS Code, MiroThinker or MiroFlow.")


def _text(servers: list[FoundServer], mirothinker: Path | None) -> str:
    if not servers and not mirothinker:
        return f"{HEAD}\n{EXAMPLE_SERVERS}{OPTIONAL}"
    entries = "\n\n".join("\n".join(_entry(server)) for server in servers)
    if not mirothinker:
        return f"{HEAD}\n{FOUND_SERVERS}{entries}\n{OPTIONAL}"
    example = next(path for path in _MIROTHINKER if path.exists()).read_text()
    _, line, rest = example.partition("\nsandbox:\n")
    return f"{HEAD}{line}{rest}" + (f"\n{entries}\n" if entries else "")


def _entry(server: FoundServer) -> Iterator[str]:
    for note in server.notes:
        yield f"  # {_printable(' '.join(note.split()))}"
    text = yaml.safe_dump(
        {server.name: server.data}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )
    yield textwrap.indent(text, "  ").rstrip()


def _write(path: Path, text: str, force: bool) -> None:
    try:
        if force:
            write_private(path, text.encode())
            return
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _warn_of_secrets(path: Path, servers: list[FoundServer]) -> None:
    secrets = [f"{server.name} ({', '.join(where)})" for server in servers if (where := server.plain_secrets)]
    if secrets:
        sys.stderr.write(
            f"toolhub: warning: {path} contains secrets, as the files that they are from do: "
            f"{_printable(', '.join(secrets))}. "
            "Better replace them by references such as ${API_KEY}, and do not commit the file\n"
        )


def _print_next(path: Path, servers: list[FoundServer], *, is_example: bool) -> None:
    active = [server for server in servers if not server.data.get("disabled")]
    unset = sorted({name for server in active for name in server.variables} - set(os.environ))
    option = "" if path.name in DEFAULT_FILES and path.parent == Path() else f" --config {shlex.quote(str(path))}"
    print("\nNext:", *(f"  export {name}=..." for name in unset), sep="\n")
    print(f"  toolhub doctor{option}     # start each server once: what works, and how to fix the rest")
    if is_example:
        print(f'  toolhub call{option} clock get_current_time \'{{"timezone": "UTC"}}\'')
    print(f"  toolhub serve{option}      # run the hub")


def _printable(text: str) -> str:
    """The text without characters that could control a terminal. The files that were found may be anybody's."""
    return "".join(filter(str.isprintable, text))


def _short(path: Path, home: Path) -> str:
    """The path as a person writes it."""
    for base, short in ((Path.cwd(), "."), (home, "~")):
        if path.is_relative_to(base):
            return f"{short}/{path.relative_to(base)}"
    return str(path)
