"""`toolhub serve`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from toolhub.cli.shared import find_config, log_to_stderr
from toolhub.cli.shared import run as run_async
from toolhub.config import Config, load_config
from toolhub.errors import ConfigError
from toolhub.serve.run import BindSettings, serve


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
    bind = chosen.with_token()
    announce = _announce_private if private else functools.partial(_announce, config, bind, made=bind.token != given)
    run_async(functools.partial(serve, config, bind, on_ready=announce))


def _announce_private(addresses: list[str], more: list[tuple[str, str]]) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _announce(
    config: Config, bind: BindSettings, addresses: list[str], more: list[tuple[str, str]], *, made: bool
) -> None:
    say = sys.stderr.write
    say(f"toolhub serves {len(config.servers)} servers ({', '.join(config.servers) or 'none'})\n")
    for address in addresses:
        say(f"  task API   {address}/v1\n" if address.startswith("http") else f"  task API   {address}\n")
    http = next((address for address in addresses if address.startswith("http")), None)
    if made:
        say(f"  token      {bind.token}   (made for this run; set TOOLHUB_TOKEN or --token to choose one)\n")
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
