"""`toolhub serve`."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

from toolhub.cli.shared import find_config, log_to_stderr
from toolhub.cli.shared import run as run_async
from toolhub.config import Config, load_config
from toolhub.errors import ConfigError
from toolhub.private_files import write_private
from toolhub.serve.guard import is_loopback
from toolhub.serve.run import BindSettings, OnReady, serve, wait_stdin_end


def run(
    path: Path | None,
    *,
    host: str | None,
    port: int | None,
    uds: Path | None,
    token: str | None,
    allow_inline: bool,
    private: bool,
    log_level: str | None,
) -> None:
    """Combine options and config, then serve."""
    config = Config() if private and path is None else load_config(find_config(path))
    settings = config.hub
    level = (log_level or ("warning" if private else settings.log_level)).lower()
    if level not in ("debug", "info", "warning", "error", "critical"):
        raise ConfigError(f"--log-level is {log_level!r}; it must be debug, info, warning or error")
    log_to_stderr(level)
    uds = uds or settings.uds
    if private and uds is None:
        raise ConfigError("--private needs --uds PATH, because a private hub listens only on a unix socket")
    given = token or (settings.token.get_secret_value() if settings.token else None)
    chosen = BindSettings(
        host=None if private else host or settings.host,
        port=settings.port if port is None else port,
        uds=uds,
        token=given,
        allow_inline=allow_inline or settings.allow_inline_servers or private,
        is_private=private,
    )
    bind = chosen.with_token(config.sandbox)
    with contextlib.ExitStack() as closing:
        announce: OnReady = _announce_private
        if not private:
            made = _TokenFile(settings.state_path, closing) if bind.token != given else None
            announce = functools.partial(_announce, config, bind, made)
        until = wait_stdin_end if private else None
        run_async(functools.partial(serve, config, bind, on_ready=announce, until=until))


class _TokenFile:
    """The file with the token that was made for this run, for clients of the same user. It is removed at the end."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack) -> None:
        self._folder = folder
        self._closing = closing

    def write(self, address: str, token: str) -> str:
        """Write the file and return how clients use it. Its name has the port, because hubs may share the folder."""
        path = self._folder / f"token-{urlsplit(address).port}"
        try:
            write_private(path, token.encode())
        except OSError as exc:
            return f"set TOOLHUB_TOKEN for clients; {path} could not be written: {exc.strerror or exc}"
        self._closing.callback(path.unlink, missing_ok=True)
        return f"clients here: --token-file {shlex.quote(str(path))}"


def _announce_private(addresses: list[str], more: list[tuple[str, str]]) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _announce(
    config: Config, bind: BindSettings, made: _TokenFile | None, addresses: list[str], more: list[tuple[str, str]]
) -> None:
    names = ", ".join(config.servers)
    lines = [
        f"toolhub serves {len(config.servers)} servers ({names})" if names else "toolhub serves no configured server"
    ]
    lines += [_row("task API", f"{address}/v1" if address.startswith("http") else address) for address in addresses]
    http = next((address for address in addresses if address.startswith("http")), None)
    if http:
        lines += [
            _row(name, f"{http}{path}") for name, path in [*more, ("MCP gateway", "/mcp"), ("metrics", "/metrics")]
        ]
        lines.append(_row("in Python", f'toolhub.connect("{http}")'))
    if made and http and bind.token:
        reachable = "code in sandboxes reaches this address" if is_loopback(bind.host or "") else "others reach it"
        lines += [
            _row("token", bind.token),
            _row("", f"made for this run, because {reachable};"),
            _row("", f"{made.write(http, bind.token)};"),
            _row("", "TOOLHUB_TOKEN chooses another"),
        ]
    if http:
        entry = {"mcpServers": {"toolhub": client_entry(http, has_token=bind.token is not None)}}
        lines += ["", "For an MCP client (mcpServers JSON):", json.dumps(entry, indent=2)]
    lines += ["", "Ctrl-C stops the hub and every tool it started.", ""]
    sys.stderr.write("\n".join(lines))
    sys.stderr.flush()


def _row(name: str, text: str) -> str:
    return f"  {name:<11}  {text}"


def client_entry(address: str, *, has_token: bool) -> dict[str, object]:
    """Return the `mcpServers` entry for a desktop client. It reads the token from the environment."""
    entry: dict[str, object] = {"type": "http", "url": f"{address}/mcp"}
    if has_token:
        entry["headers"] = {"Authorization": "Bearer ${TOOLHUB_TOKEN}"}
    return entry
