"""`toolhub serve`."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from toolhub.cli.shared import find_config, log_to_stderr
from toolhub.cli.shared import run as run_async
from toolhub.config import Config, load_config
from toolhub.errors import ConfigError
from toolhub.private_files import write_private
from toolhub.serve.guard import is_loopback
from toolhub.serve.run import BindSettings, OnReady, serve


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
    """Settle the bind from options and config, then serve."""
    config = Config() if private and path is None else load_config(find_config(path))
    settings = config.hub
    level = (log_level or ("warning" if private else settings.log_level)).lower()
    if level not in ("debug", "info", "warning", "error", "critical"):
        raise ConfigError(f"--log-level {log_level!r} is none of debug, info, warning, error")
    log_to_stderr(level)
    uds = uds or settings.uds
    if private and uds is None:
        raise ConfigError("--private needs --uds PATH: the socket is its only door")
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
        run_async(functools.partial(serve, config, bind, on_ready=announce))


class _TokenFile:
    """Where clients of the same user find a token that was made for this run; it is removed at the end."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack) -> None:
        self._folder = folder
        self._closing = closing

    def write(self, address: str, token: str) -> str:
        """Write it and say how clients get it. The name has the port: several hubs may share the folder."""
        path = self._folder / f"token-{urlsplit(address).port}"
        try:
            write_private(path, token.encode())
        except OSError as exc:
            return f"set TOOLHUB_TOKEN for clients; {path} could not be written: {exc.strerror or exc}"
        self._closing.callback(path.unlink, missing_ok=True)
        return f"clients here: --token-file {path}"


def _announce_private(addresses: list[str], more: list[tuple[str, str]]) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _announce(
    config: Config, bind: BindSettings, made: _TokenFile | None, addresses: list[str], more: list[tuple[str, str]]
) -> None:
    say = sys.stderr.write
    say(f"toolhub serves {len(config.servers)} servers ({', '.join(config.servers) or 'none'})\n")
    for address in addresses:
        say(f"  task API   {address}/v1\n" if address.startswith("http") else f"  task API   {address}\n")
    http = next((address for address in addresses if address.startswith("http")), None)
    if made and http and bind.token:
        reachable = "code in sandboxes reaches this address" if is_loopback(bind.host or "") else "others reach it"
        say(f"  token      {bind.token}\n             (made for this run, because {reachable};\n")
        say(f"             {made.write(http, bind.token)};\n             TOOLHUB_TOKEN chooses another)\n")
    if http:
        for name, path in more:
            say(f"  {name:<10} {http}{path}\n")
        say(f"  MCP gateway  {http}/mcp\n  metrics    {http}/metrics\n\nFor an MCP client (mcpServers JSON):\n")
        say(
            json.dumps({"mcpServers": {"toolhub": client_entry(http, has_token=bind.token is not None)}}, indent=2)
            + "\n"
        )
    say("\nCtrl-C stops the hub and every tool it started.\n")
    sys.stderr.flush()


def client_entry(address: str, *, has_token: bool) -> dict[str, object]:
    """The entry that a desktop client takes under `mcpServers`; it reads the token from the environment."""
    entry: dict[str, object] = {"type": "http", "url": f"{address}/mcp"}
    if has_token:
        entry["headers"] = {"Authorization": "Bearer ${TOOLHUB_TOKEN}"}
    return entry
