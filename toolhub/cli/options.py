"""The options that several commands have. An option means the same in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolhub.errors import ConfigError
from toolhub.private_files import read_secret

_LONGEST_TOKEN = 4096


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    # By name: typer brings a copy of click, and its enumeration is not that of an installed click.
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _choose_hub(context: typer.Context, hub: str | None) -> str | None:
    """Return the hub to use. A --config on the command line is used instead of a hub that the environment names."""
    if hub is None or context.resilient_parsing or not _is_on_command_line(context, "config"):
        return hub
    if _is_on_command_line(context, "hub"):
        raise ConfigError("--hub and --config were both given; leave one out: a running hub has its own config")
    return None


def _warn_of_token(context: typer.Context, token: str | None) -> str | None:
    if token is not None and _is_on_command_line(context, "token") and not context.resilient_parsing:
        typer.echo(
            "toolhub: warning: every user of this machine can read a --token in the list of processes (ps); "
            "use --token-file PATH or the environment variable TOOLHUB_TOKEN",
            err=True,
        )
    return token


def _read_token_file(context: typer.Context, path: Path | None) -> str | None:
    """Replace the option's value by the file's content. It overrides TOOLHUB_TOKEN, as every option does."""
    if path is None or context.resilient_parsing:
        return None
    if _is_on_command_line(context, "token"):
        raise ConfigError("--token and --token-file were both given; leave --token out")
    try:
        token = read_secret(path, limit=_LONGEST_TOKEN).decode("ascii").strip()
    except PermissionError as exc:
        raise ConfigError(f"--token-file: {exc}") from exc
    except OSError as exc:
        raise ConfigError(f"--token-file: {f'cannot read {path}: {exc.strerror}' if exc.strerror else exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"--token-file: {path} must contain one token of ASCII characters") from exc
    if not token or any(character.isspace() for character in token):
        raise ConfigError(f"--token-file: {path} must contain one token and nothing else")
    return token


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="TOOLHUB_CONFIG",
        help="The config: YAML, or a desktop client's mcpServers JSON. Default: hub.yaml, hub.yml, .mcp.json or "
        "mcp.json in this directory.",
        is_eager=True,  # so that the other options' callbacks know it
    ),
]
HubOption = Annotated[
    str | None,
    typer.Option(
        "--hub",
        metavar="URL",
        envvar="TOOLHUB_URL",
        help="Use a running hub: http://host:port or unix:///path.",
        callback=_choose_hub,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="TOOLHUB_TOKEN",
        help="The hub's bearer token. Other users can see it in the list of processes: prefer the environment "
        "variable, or --token-file.",
        is_eager=True,
        callback=_warn_of_token,
    ),
]
TokenFileOption = Annotated[
    Any,
    typer.Option(
        "--token-file",
        metavar="FILE",
        parser=Path,
        help="A file with the hub's bearer token. Only its owner may be able to read it (mode 0600).",
        callback=_read_token_file,
    ),
]


def _split_names(value: str | None) -> Any:
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise ConfigError("--servers names no server")
    return names


ServersOption = Annotated[
    Any,
    typer.Option(
        "--servers",
        metavar="NAMES",
        parser=str,
        callback=_split_names,
        help="Only these servers, separated by commas. For this client there are no others.",
    ),
]
LlmOption = Annotated[
    str | None,
    typer.Option("--llm", metavar="URL", help="The model server, such as http://127.0.0.1:8000/v1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
