"""The commands that this package adds to `toolhub`. Their work is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolhub.cli.app import ConfigOption, HubOption, JsonOption, TokenOption
from toolhub.errors import MissingExtra


def add_commands(app: typer.Typer) -> None:
    """Entry point of the group `toolhub.commands`."""
    app.command("run")(run)
    app.command("llm-command")(llm_command)


def _work(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"toolhub_agent.cli.{module}")
    except ImportError as exc:
        if (exc.name or "").startswith("toolhub"):
            raise
        raise MissingExtra("hub,agent", f"this command ({exc.name})") from exc


def run(
    question: Annotated[str | None, typer.Argument(help="The task; or --tasks for many.")] = None,
    config: ConfigOption = None,
    llm: Annotated[
        str | None, typer.Option(metavar="URL", help="Model server, e.g. http://127.0.0.1:8000/v1; else the config's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name, if the server has several.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines with id, question and, if known, ground_truth.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at once.")] = 8,
    runs: Annotated[int, typer.Option(min=1, help="How often each task is run.")] = 1,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Logs and results; the same folder goes on with what is left.")
    ] = Path("logs"),
    hub: HubOption = None,
    token: TokenOption = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Show what of each prompt the cache could reuse.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have an agent answer a question, or a file of them, with the configured tools and a model server.

    `toolhub run "Who wrote ...?" --config configs/local.yaml --llm http://127.0.0.1:8000/v1`

    A sweep: `--tasks file.jsonl --concurrency 60 --runs 3 --out logs/sweep`. Ctrl-C ends it well; the same command goes
    on with what is left, tasks under way included. Exit code 1: a task ended without an answer.
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
        token=token,
        prefix=prefix,
        as_json=as_json,
    )


def llm_command(
    profile: Annotated[
        str | None, typer.Argument(help="Its name, or the path of a YAML file; without one, all are listed.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as model=..., tensor_parallel=4, router.port=9000."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the command that starts a model server well suited to agents: prefix caching, chunked prefill, metrics.

    `toolhub llm-command vllm --set model=Qwen/Qwen3-8B`

    With several servers, `--set prefill.port=9000` sets a key of the one named prefill, a bare key that of all.
    """
    _work("llm_command").run(profile, overrides=overrides or [], as_json=as_json)
