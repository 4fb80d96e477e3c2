"""The commands and their options. Each command's work is in its own module, imported when it runs.

With the base install only the client's commands work. The others say which extra they need.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from toolhub.errors import ConfigError, MissingExtra
from toolhub.extensions import find_extension
from toolhub.private_files import read_secret

COMMANDS = "toolhub.commands"

app = typer.Typer(
    name="toolhub",
    help="Keeps the tools of long-running research agents alive.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TOOLHUB_CONFIG",
        help="YAML config, or a desktop client's mcpServers JSON. Default: toolhub.yaml, toolhub.yml, .mcp.json or "
        "mcp.json in this directory.",
    ),
]
HubOption = Annotated[
    str | None,
    typer.Option("--hub", envvar="TOOLHUB_URL", help="Use a running hub: http://host:port or unix:///path."),
]


def _warn_of_token(context: typer.Context, value: str | None) -> str | None:
    # By name: typer brings a copy of click, and its enumeration is not that of an installed click.
    source = context.get_parameter_source("token")
    if value is not None and source is not None and source.name == "COMMANDLINE":
        typer.echo(
            "toolhub: warning: every user of this machine can read a --token in the list of processes (ps); "
            "use --token-file PATH or the environment variable TOOLHUB_TOKEN",
            err=True,
        )
        context.meta[_TOKEN_ON_COMMAND_LINE] = True
    return value


def _token_in(path: Path) -> str:
    try:
        token = read_secret(path, limit=_LONGEST_TOKEN).decode("ascii").strip()
    except PermissionError as exc:
        raise ConfigError(f"--token-file: {exc}") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--token-file: cannot read a token from {path}: {exc}") from exc
    if not token or any(character.isspace() for character in token):
        raise ConfigError(f"--token-file: {path} must contain one token and nothing else")
    return token


def _read_token_file(context: typer.Context, path: Path | None) -> str | None:
    """Replace the option's value by the file's content. It overrides TOOLHUB_TOKEN, as every option does."""
    if path is None:
        return None
    if context.meta.get(_TOKEN_ON_COMMAND_LINE):
        raise ConfigError("--token and --token-file were both given; leave --token out")
    return _token_in(path)


_LONGEST_TOKEN = 4096
_TOKEN_ON_COMMAND_LINE = "toolhub.token_on_command_line"  # noqa: S105  # a key, not a token
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TOOLHUB_TOKEN",
        help="Bearer token of the running hub. Other users can see it in the list of processes: "
        "prefer the environment variable, or --token-file.",
        show_envvar=True,
        is_eager=True,
        callback=_warn_of_token,
    ),
]
TokenFileOption = Annotated[
    Any,
    typer.Option(
        "--token-file",
        metavar="PATH",
        parser=Path,
        help="File with the bearer token, which only its owner may read (mode 0600).",
        callback=_read_token_file,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def _work(module: str, *, extra: str = "hub") -> Any:
    """Import a command's module. Raises MissingExtra if a package is missing."""
    try:
        return importlib.import_module(f"toolhub.cli.{module}")
    except ImportError as exc:
        if (exc.name or "").startswith("toolhub."):
            raise
        raise MissingExtra(extra, f"this command ({exc.name})") from exc


def _extension(name: str, feature: str) -> Any:
    """Return what another package adds to a command. Raises MissingExtra if it is not installed."""
    try:
        found = find_extension(name)
    except ImportError as exc:
        raise MissingExtra("agent", f"{feature} ({exc.name})") from exc
    if found is None:
        raise MissingExtra("agent", feature)
    return found


def add_installed_commands() -> None:
    """Add the commands of installed packages. They import their work when it runs, as this module does."""
    for entry in importlib.metadata.entry_points(group=COMMANDS):
        entry.load()(app)


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="TCP port; 0 takes any free one.")] = None,
    uds: Annotated[Path | None, typer.Option(help="Also listen on this unix socket (mode 0600).")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TOOLHUB_TOKEN",
            help="Bearer token that clients must send. Without it, one is made if other machines or sandboxes can "
            "reach the hub. Other users can see it in the list of processes: prefer the environment variable, or "
            "--token-file.",
            is_eager=True,
            callback=_warn_of_token,
        ),
    ] = None,
    token_file: TokenFileOption = None,
    allow_inline_servers: Annotated[
        bool,
        typer.Option("--allow-inline-servers", help="Let TCP clients start their own servers, that is, any program."),
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="For one parent process: listens only on --uds, and ends with its stdin.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the hub: task API `/v1`, MCP gateway `/mcp`, `/metrics`. Ctrl-C ends it and every server it started.

    Signals: SIGTERM and SIGINT give running calls time to end (`hub.drain_s`), then stop the hub. A second signal stops
    it at once. SIGHUP is ignored, so that the hub outlives its terminal.
    """
    _work("serve").run(
        config,
        host=host,
        port=port,
        uds=uds,
        token=token_file or token,
        allow_inline=allow_inline_servers,
        private=private,
        log_level=log_level,
    )


@app.command()
def stdio(
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Run as one MCP server over stdio. A desktop client that starts it sees the tools of all configured servers."""
    _work("stdio").run(config, hub, token_file or token)


@app.command()
def tools(
    server: Annotated[str | None, typer.Argument(help="Only this server's tools.")] = None,
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools of every configured server."""
    _work("use", extra="hub").list_tools(server, config, hub, token_file or token, as_json)


@app.command()
def servers(as_json: JsonOption = False) -> None:
    """List the installed builtin servers with their tools and options. In a config: `builtin: NAME`."""
    _work("servers").list_servers(as_json)


@app.command()
def call(
    server: Annotated[str, typer.Argument(help="Server name, as in the config.")],
    tool: Annotated[str, typer.Argument(help="Tool name.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="Arguments as a JSON object, or @file, or -.")
    ] = "{}",
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Task to call in. A task that is open on the running hub stays open. Otherwise, and by default, a new "
            "task is opened that ends with the call.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for everything, also for the server's start.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Call one tool and print its result. Exit code 1: the tool reports an error; 2: it could not be called.

    Example: `toolhub call --config hub.yaml time get_current_time '{"timezone": "UTC"}'`
    """
    _work("use", extra="hub").call_tool(
        server, tool, arguments, config, hub, token_file or token, task, timeout, as_json
    )


@app.command()
def tasks(
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the open tasks of a running hub (default http://127.0.0.1:8765) and what their servers do."""
    _work("tasks").show_tasks(hub, token_file or token, as_json)


@app.command()
def doctor(
    config: ConfigOption = None,
    llm: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Check a model server instead: prefix cache, template, hints, TTFT."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start every configured server. Report what works and how fast, and for each failure its cause and the fix."""
    if llm is not None:
        _extension("doctor-llm", "doctor --llm")(config, llm, as_json)
    else:
        _work("doctor").run(config, as_json)


@app.command()
def demo(
    tasks: Annotated[int, typer.Option(min=1, max=20, help="Agents to play.")] = 3,
    replay: Annotated[
        bool, typer.Option("--replay", help="Replay an agent's recorded task instead, with real tool calls.")
    ] = False,
    replay_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay a log that `toolhub run` wrote, with the tools of --config."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show toolhub at work in about 20 s: real servers, a killed server, a comparison. Needs no key and no network."""
    if replay or replay_log is not None:
        _extension("demo-replay", "demo --replay")(as_json, replay_log, config)
    else:
        _work("demo").run(tasks, as_json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="A benchmark (overhead, storm, kv, ...), all, report or check. Without a name: list them."),
    ] = None,
) -> None:
    """Measure toolhub on this machine against the alternatives (needs a source checkout)."""
    _work("bench", extra="bench").run(name, context.args)
