"""`toolhub tools` and `call`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, open_task, print_json, run
from toolhub.errors import ConfigError, ToolhubError
from toolhub.model import Result, ToolInfo
from toolhub.wire import error_to_wire, tool_to_wire

# Of 80 columns. Longer names are folded and not cut, so that they can be copied.
_NAME_WIDTH = 32


def list_tools(server: str | None, config: Path | None, hub: str | None, token: str | None, as_json: bool) -> None:
    """Print tools by server; exit 1 if a server could not be reached."""
    found = run(functools.partial(_tools_by_server, server, config, hub, token))
    failed = {name: tools for name, tools in found.items() if isinstance(tools, ToolhubError)}
    if as_json:
        print_json(
            {
                name: {"error": error_to_wire(tools)}
                if isinstance(tools, ToolhubError)
                else {"tools": [tool_to_wire(tool) for tool in tools]}
                for name, tools in found.items()
            }
        )
    else:
        _print_tools(console(), found)
    if failed:
        sys.exit(1)


async def _tools_by_server(
    server: str | None, config: Path | None, hub: str | None, token: str | None
) -> dict[str, list[ToolInfo] | ToolhubError]:
    async with open_task(config, hub, token, None) as task:
        if server is not None:
            return {server: await task.tools(server)}
        found: dict[str, list[ToolInfo] | ToolhubError] = await task.tools_by_server()
        return found


def _print_tools(out: Console, found: dict[str, list[ToolInfo] | ToolhubError]) -> None:
    for name, tools in found.items():
        if isinstance(tools, ToolhubError):
            out.print(f"[bold]{escape(name)}[/]  [red]failed[/]\n  {escape(str(tools))}\n", soft_wrap=True)
            continue
        table = Table(
            title=f"{escape(name)} ({len(tools)})",
            title_justify="left",
            title_style="bold",
            box=None,
            padding=(0, 2, 0, 0),
        )
        longest = max((len(tool.name) for tool in tools), default=0)
        # A width and no least width: rich would take the room for that from the other columns after it has shared it
        # out, and cut them off.
        table.add_column("tool", style="cyan", overflow="fold", width=max(min(longest, _NAME_WIDTH), len("tool")))
        table.add_column("arguments", style="dim", overflow="fold", min_width=len("arguments"))
        table.add_column("description", overflow="fold", min_width=len("description"))
        for tool in tools:
            table.add_row(escape(tool.name), escape(_arguments(tool)), escape(_first_line(tool.description)))
        out.print(table)
        out.print()


def _arguments(tool: ToolInfo) -> str:
    required = set(tool.input_schema.get("required") or ())
    names = tool.input_schema.get("properties") or {}
    return ", ".join(name if name in required else f"[{name}]" for name in names)


def _first_line(text: str | None) -> str:
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def call_tool(
    server: str,
    tool: str,
    arguments: str,
    config: Path | None,
    hub: str | None,
    token: str | None,
    task: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Print the result; exit 1 if the tool reports an error, 2 if it could not be called."""
    given = _read_arguments(arguments)
    try:
        result = run(functools.partial(_call, server, tool, given, config, hub, token, task, timeout))
    except ToolhubError as exc:
        if as_json:
            print_json({"error": error_to_wire(exc)})
        raise
    if as_json:
        print_json(result.raw)
    else:
        _print_result(result)
    if result.is_error:
        sys.exit(1)


async def _call(
    server: str,
    tool: str,
    arguments: dict[str, Any],
    config: Path | None,
    hub: str | None,
    token: str | None,
    task: str | None,
    timeout: float | None,
) -> Result:
    async def show_progress(progress: float, total: float | None, message: str | None) -> None:
        of = f"/{total:g}" if total else ""
        sys.stderr.write(f"  {progress:g}{of} {message or ''}\n")

    async with open_task(config, hub, token, task) as scope:
        result: Result = await scope.call(server, tool, arguments, timeout=timeout, on_progress=show_progress)
        return result


def _read_arguments(text: str) -> dict[str, Any]:
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as exc:
            raise ConfigError(f"arguments file {text[1:]!r}: {exc.strerror}") from exc
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f'the arguments are not JSON ({exc}); example: \'{{"timezone": "UTC"}}\'') from None
    if not isinstance(value, dict):
        raise ConfigError(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def _print_result(result: Result) -> None:
    for block in result.content:
        if isinstance(block.get("text"), str):
            sys.stdout.write(block["text"].rstrip("\n") + "\n")
        else:
            size = len(block.get("data") or "")
            sys.stdout.write(
                f"[{block.get('type')} block, {block.get('mimeType', '?')}, {size} characters; see --json]\n"
            )
