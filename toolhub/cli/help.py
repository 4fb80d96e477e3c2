"""The layout of `--help`: commands in groups, examples at the end. Lines are wrapped on a terminal only."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])

# The width of output that goes to a pipe or a file. No line is so long, so none is wrapped there.
UNBOUNDED = 100_000

GROUPS = ("Start here", "Run a hub", "Use its tools", "Run agents", "Measure", "Commands")
START, SERVE, USE, AGENTS, MEASURE, OTHER = GROUPS


def width_of(stream: IO[str]) -> int | None:
    """Return None if lines are to fit a terminal, or the width that the variable COLUMNS asks for; else UNBOUNDED."""
    return None if os.environ.get("COLUMNS") or stream.isatty() else UNBOUNDED


def _write_examples(command: Any, formatter: Any) -> None:
    if command.epilog:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in command.epilog.splitlines()))


def _group_of(command: Any) -> str:
    return command.rich_help_panel if command.rich_help_panel in GROUPS else OTHER


class CommandWithExamples(TyperCommand):
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(self, formatter)


class GroupWithExamples(TyperGroup):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options, because they are what a reader looks for."""
        self.format_commands(ctx, formatter)
        TyperCommand.format_options(self, ctx, formatter)  # type: ignore[arg-type]  # TyperGroup's adds the commands

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [command for command in self.commands.values() if not command.hidden]
        for group in sorted({_group_of(command) for command in commands}, key=GROUPS.index):
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (str(command.name), command.get_short_help_str(limit=200))
                        for command in commands
                        if _group_of(command) == group
                    ]
                )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(self, formatter)


def command(app: typer.Typer, group: str, *examples: str, name: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Decorate the function of a command. The first paragraph of its docstring is its line in the list of commands."""
    return app.command(name, cls=CommandWithExamples, rich_help_panel=group, epilog="\n".join(examples), **settings)
