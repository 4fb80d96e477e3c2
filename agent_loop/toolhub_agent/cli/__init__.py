"""The commands that this package adds to `toolhub`. Their work is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolhub.cli.help import AGENTS, command
from toolhub.cli.options import ConfigOption, JsonOption, LlmOption, TokenFileOption, TokenOption
from toolhub.errors import MissingExtra


def add_commands(app: typer.Typer) -> None:
    """The entry point `commands-agent`."""
    command(
        app,
        AGENTS,
        'toolhub run "Who wrote ...?" --config hub.yaml --llm http://127.0.0.1:8000/v1',
        "toolhub run --tasks tasks.jsonl --concurrency 60 --runs 3 --out logs/sweep",
    )(run)
    lines = (
        "toolhub llm-command",
        "toolhub llm-command vllm --set model=Qwen/Qwen3-8B",
        "toolhub llm-command vllm --decode ngram",
    )
    command(app, AGENTS, *lines, name="llm-command")(llm_command)


def _work(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"toolhub_agent.cli.{module}")
    except ImportError as exc:
        if (exc.name or "").startswith("toolhub"):
            raise
        raise MissingExtra("hub,agent", f"this command ({exc.name})") from exc


def run(
    question: Annotated[str | None, typer.Argument(metavar="QUESTION", help="The question; or give --tasks.")] = None,
    config: ConfigOption = None,
    llm: LlmOption = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model, if the server has several.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines with id, question and, if known, ground_truth.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Tasks at once. Default: 8; with llm.admission as many as the model server holds."
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="How often each task is run.")] = 1,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Logs and results. A sweep with the same folder continues.")
    ] = Path("logs"),
    hub: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="TOOLHUB_URL",
            help="Use the tools of a running hub: http://host:port or unix:///path. --config then gives the agent.",
        ),
    ] = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    share_results: Annotated[
        bool,
        typer.Option(
            "--share-results",
            help="Use the results of read-only tools again, in all tasks and attempts with this --out. The attempts "
            "are then not independent; the report says so.",
        ),
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Show how much of each prompt the cache could reuse.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Have an agent answer a question, or a file of them, with the configured tools.

    Without --llm it uses the model servers of the config. Ctrl-C ends a sweep in order: the same command goes on with
    what is left, tasks under way included. Exit code 1: a task ended without an answer.
    """
    _work("run").run(
        question,
        config=config,
        llm=llm,
        model=model,
        tasks=tasks,
        concurrency=concurrency,
        runs=runs,
        out=out,
        hub=hub,
        token=token_file or token,
        share_results=share_results,
        prefix=prefix,
        as_json=as_json,
    )


def llm_command(
    profile: Annotated[
        str | None,
        typer.Argument(metavar="PROFILE", help="A profile's name, or the path of a YAML file. Without it: list all."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="E.g. model=..., tensor-parallel-size=4, router.port=9000."),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="Add speculative decoding: suffix, ngram, eagle3 or mtp."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the command that starts a model server well suited to agents.

    It has prefix caching, chunked prefill and metrics. `--decode` adds a recipe for speculative decoding, with its
    known hazards for tool calls. `--set FLAG=VALUE` sets an engine's flag for every command that
    has it, `--set prefill-a.port=9000` that of the command named prefill-a.
    """
    _work("llm_command").run(profile, overrides=overrides or [], decode=decode, as_json=as_json)
