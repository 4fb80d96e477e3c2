"""The commands and their options. Each command's work is in its own module, imported when it runs.

With the base install only the client's commands work. The others say which extra they need.
"""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from toolhub import __version__
from toolhub.cli.complete import complete_error, complete_server, complete_tool
from toolhub.cli.help import MEASURE, OTHER, SERVE, START, USE, GroupWithExamples, command
from toolhub.cli.options import (
    ConfigOption,
    HubOption,
    JsonOption,
    LlmOption,
    ServersOption,
    TokenFileOption,
    TokenOption,
)
from toolhub.errors import ConfigError, MissingExtra
from toolhub.extensions import find_extension, find_extensions

app = typer.Typer(
    name="toolhub",
    cls=GroupWithExamples,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\
toolhub init        # write hub.yaml, with the servers of your desktop client or editor
toolhub doctor      # start each of them once: what works, and how to fix the rest
toolhub serve       # run the hub; it prints what agents and MCP clients need to connect""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toolhub {__version__} (Python {platform.python_version()}, {Path(__file__).parents[1]})")
        raise typer.Exit


@app.callback()
def toolhub(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Keep the tools of long-running research agents alive.

    A hub starts the MCP servers of a config, keeps a session for each task, limits how many calls run at once, and
    restarts servers that die. Agents and MCP clients connect to it.
    """
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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


@functools.cache
def add_installed_commands() -> None:
    """Add the commands of installed packages, once. They import their work when it runs, as this module does."""
    for add_commands in find_extensions("commands"):
        add_commands(app)


def is_own_command(arguments: Sequence[str]) -> bool:
    """Whether a command line needs no command of another package. To find these takes 40 ms."""
    own = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    return bool(arguments) and (arguments[0] == "--version" or arguments[0] in own)


@command(
    app,
    START,
    "toolhub init                # hub.yaml, with the servers of your desktop client or editor",
    "toolhub init --empty        # a small example that works at once",
    "toolhub init servers.yaml --force",
)
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("hub.yaml"),
    empty: Annotated[
        bool, typer.Option("--empty", help="Write the small example; do not look at other programs.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a config with the MCP servers that your other programs use.

    It looks at Claude Desktop, Claude Code, Cursor and VS Code, for this user and in this folder, and for a checkout of
    MiroThinker or MiroFlow in this folder. It shows what it found. If it finds no server, it writes a small
    example. It starts nothing and changes no other file.
    """
    _work("init").write_config(path, is_empty=empty, force=force)


@command(
    app,
    START,
    "toolhub doctor --config hub.yaml",
    "toolhub doctor --llm http://127.0.0.1:8000/v1",
    "toolhub doctor --llm http://127.0.0.1:8000/v1 --against http://127.0.0.1:8001/v1",
)
def doctor(
    config: ConfigOption = None,
    llm: LlmOption = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The same model server without speculative decoding, to compare --llm with."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start every configured server once and report what works, how fast, and how to fix the rest.

    With --llm it checks a model server instead: prefix cache, template, hints, time to the first token. With --against
    too it measures whether speculative decoding is worth it: speed, acceptance, and valid tool calls at 1, 4 and 16
    requests at once. Exit code 1: a server does not work, or speculative decoding loses tool calls; 2: the check could
    not begin.
    """
    if against is not None and llm is None:
        raise ConfigError("--against needs --llm, the server with speculative decoding")
    if llm is not None:
        _extension("doctor-llm", "doctor --llm")(config, llm, against, as_json)
    else:
        _work("doctor").run(config, as_json)


@command(app, START, "toolhub demo --agents 5", "toolhub demo --replay")
def demo(
    agents: Annotated[int, typer.Option(min=1, max=20, metavar="N", help="How many agents run at once.")] = 3,
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
    """Show toolhub at work: real servers, a killed one, a comparison.

    It takes about 20 s and needs neither a key nor the network.
    """
    if replay or replay_log is not None:
        _extension("demo-replay", "demo --replay")(as_json, replay_log, config)
    else:
        _work("demo").run(agents, as_json)


@command(app, START, "toolhub errors", "toolhub errors CallTimeout")
def errors(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the error, in upper or lower case. Without it: list all errors.",
            autocompletion=complete_error,
        ),
    ] = None,
) -> None:
    """Print what an error means, and how to fix its causes."""
    _work("errors").show_errors(name)


config_app = typer.Typer(cls=GroupWithExamples, invoke_without_command=True, rich_markup_mode=None)
app.add_typer(config_app, name="config", rich_help_panel=START, epilog="toolhub config schema > hub.schema.json")


@config_app.callback()
def config(context: typer.Context) -> None:
    """Print the schema of configs, for an editor."""
    _help_without_command(context)


@command(config_app, OTHER, "toolhub config schema > hub.schema.json")
def schema() -> None:
    """Print the JSON schema of a config.

    With it an editor completes keys and shows their meaning, unit and default. For VS Code with the extension YAML,
    make this the first line of the config: # yaml-language-server: $schema=hub.schema.json
    """
    _work("init").print_schema()


@command(
    app,
    SERVE,
    "toolhub serve --config hub.yaml",
    "toolhub serve --port 0 --uds ~/.toolhub.sock     # any free port, and a unix socket",
    "toolhub serve --host 0.0.0.0                     # for other machines; it makes a token",
)
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on; default: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="TCP port; 0: any free one; default: 8765.")
    ] = None,
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Listen on this unix socket too (mode 0600).")
    ] = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    allow_inline_servers: Annotated[
        bool,
        typer.Option("--allow-inline-servers", help="Let TCP clients start their own servers, that is, any program."),
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="For one parent process: listen only on --uds, and end with its stdin.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error; default: info.")
    ] = None,
) -> None:
    """Run the hub: task API /v1, MCP gateway /mcp, /metrics.

    Clients must send the token. Without one, the hub makes a token if other machines or sandboxes can reach it.

    SIGTERM and SIGINT (Ctrl-C) give running calls time to end (`hub.drain_s`), then stop the hub and every server that
    it started. A second signal stops it at once. SIGHUP is ignored, so that the hub outlives its terminal.
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


@command(app, SERVE, "toolhub stdio --config hub.yaml", "toolhub stdio --hub http://127.0.0.1:8765 --servers time,web")
def stdio(
    context: typer.Context,
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    servers: ServersOption = None,
) -> None:
    """Run as one MCP server over stdin and stdout.

    A desktop client that starts it sees the tools of all configured servers.
    """
    _work("stdio").run(config, hub, token_file or token, servers, received=context.obj)


@command(app, USE, "toolhub tools", "toolhub tools time --config hub.yaml", "toolhub tools --hub http://127.0.0.1:8765")
def tools(
    server: Annotated[
        str | None,
        typer.Argument(metavar="SERVER", help="Only the tools of this server.", autocompletion=complete_server),
    ] = None,
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the servers and list their tools.

    Exit code 1: a server could not be started.
    """
    _work("use").list_tools(server, config, hub, token_file or token, as_json)


@command(
    app,
    USE,
    'toolhub call time get_current_time \'{"timezone": "UTC"}\'',
    "toolhub call files read_file @arguments.json --timeout 30",
)
def call(
    server: Annotated[
        str,
        typer.Argument(metavar="SERVER", help="Name of the server, as in the config.", autocompletion=complete_server),
    ],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.", autocompletion=complete_tool)],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Arguments: a JSON object, @FILE, or - for stdin.")
    ] = "{}",
    config: ConfigOption = None,
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The task to call in. A task that is open on the running hub stays open. Otherwise, and by default, a "
            "new task is opened that ends with the call.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Time for everything, the server's start included."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Call one tool and print its result.

    Exit code 1: the tool reports an error; 2: it could not be called.
    """
    _work("use").call_tool(server, tool, arguments, config, hub, token_file or token, task, timeout, as_json)


FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the recordings: a file per task.")]
CommandArgument = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The program that uses the tools, such as your agent.")
]


@command(
    app,
    USE,
    "toolhub record tape -- python main.py",
    'toolhub record tape --config hub.yaml -- toolhub call time get_current_time \'{"timezone": "UTC"}\'',
)
def record(folder: FolderArgument, command: CommandArgument, config: ConfigOption = None) -> None:
    """Run a program and record every tool call that it makes.

    The program finds the hub by the variable TOOLHUB_URL, as the clients of toolhub do. It may bring its own servers.
    """
    _work("cassette").record(folder, command, config)


@command(app, USE, "toolhub replay tape -- python main.py", "toolhub replay tape --time-scale 1 -- python main.py")
def replay(
    folder: FolderArgument,
    command: CommandArgument,
    time_scale: Annotated[
        float,
        typer.Option(
            min=0, metavar="X", help="1: answer after the recorded times; 0.5: after half of them; 0: at once."
        ),
    ] = 0,
) -> None:
    """Run a program and answer its tool calls from recordings.

    No server is started: it needs neither keys nor a network. A call that was not recorded is an error. It shows the
    nearest recorded call, and makes the exit code 1.
    """
    _work("cassette").replay(folder, command, time_scale)


@command(app, USE, "toolhub cassette tape", "diff <(toolhub cassette old) <(toolhub cassette new)")
def cassette(
    path: Annotated[Path, typer.Argument(metavar="DIR|FILE", help="A folder of recordings, or one of them.")],
) -> None:
    """Print recorded calls, a line each. The lines have no times, so that `diff` can compare recordings."""
    _work("cassette").show(path)


@command(app, USE, "toolhub tasks", "toolhub tasks --hub unix:///run/toolhub.sock --json")
def tasks(
    hub: HubOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the open tasks of a running hub and what their servers do.

    Default hub: http://127.0.0.1:8765.
    """
    _work("tasks").show_tasks(hub, token_file or token, as_json)


@command(app, USE, "toolhub servers", "toolhub servers --config hub.yaml")
def servers(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the builtin servers with their tools and options.

    A config uses one by its name: `builtin: clock`. With --config it lists the servers of that config instead, with the
    tools that are known without starting them.
    """
    _work("servers").list_servers(config, as_json)


@command(
    app,
    MEASURE,
    "toolhub bench",
    "toolhub bench overhead --quick",
    "toolhub bench soak --help",
    # Help of one benchmark is its own.
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A benchmark (overhead, storm, kv, ...), all, report or check. Without a name: list them.",
        ),
    ] = None,
) -> None:
    """Measure toolhub on this machine against the alternatives.

    It needs a source checkout. NAME --help shows the options of a benchmark.
    """
    if name in ("-h", "--help"):
        typer.echo(context.get_help())
        return
    _work("bench", extra="bench").run(name, context.args)
