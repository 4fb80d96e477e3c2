"""What people see while tasks run: one task line by line, a sweep as a bar, and a table at the end."""

from __future__ import annotations

import json
from collections.abc import Collection

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from toolhub_agent.sweep import ResultRow
from toolhub_agent.tasklog import MAIN
from toolhub_agent.types import Completion, Delta, Json, TaskResult, ToolCall, ToolOutcome, Usage

# How many characters of a call, an answer or a result one line shows.
_WIDTH = 100


class TaskView:
    """One task: a line per turn and per call, and below them what the model writes at the moment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._tail = ""

    def __enter__(self) -> TaskView:
        if self._console.is_terminal:
            self._status = self._console.status("asking the model")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def wrote(self, agent: str, delta: Delta) -> None:
        if self._status is None:
            return
        self._tail = (self._tail + delta.reasoning + delta.text)[-_WIDTH:]
        self._status.update(f"[dim]{markup_text(one_line(self._tail))}[/]")

    def answered(self, agent: str, turn: int, completion: Completion | None, rolled_back: str | None) -> None:
        self._tail = ""
        who = "" if agent == MAIN else f"{markup_text(agent)} "
        if rolled_back is not None:
            self._console.print(f"{who}[yellow]turn {turn + 1} rolled back[/]: {markup_text(rolled_back[:_WIDTH])}")
        elif completion is not None:
            self._console.print(f"{who}[bold]turn {turn}[/]  {markup_text(cost_text(completion))}")
            if text := one_line(completion.text):
                self._console.print(f"  [dim]{markup_text(shortened(text))}[/]")

    def calling(self, agent: str, call: ToolCall) -> None:
        if self._status is not None:
            self._status.update(f"[cyan]{markup_text(call_text(call))}[/]")

    def called(self, agent: str, outcome: ToolOutcome) -> None:
        mark = "[red]✗[/]" if outcome.is_error else "[green]→[/]"
        early = ", started early" if outcome.started_early else ""
        self._console.print(
            f"  {mark} {markup_text(call_text(outcome.call))}  [dim]{outcome.seconds:.2f} s, "
            f"{len(outcome.text):,} characters{early}[/]"
        )


class SweepView:
    """A sweep as a bar; failures as lines above it."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._bar = self._progress.add_task("tasks", total=total, completed=done, note="")
        self._success = self._failed = 0
        self._paused = ""

    def __enter__(self) -> SweepView:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def note_pauses(self, pauses: Collection[str]) -> None:
        """pauses: of agents that admission lets wait, for how long each and why."""
        self._paused = f"; {len(pauses)} paused, one for {next(iter(pauses))}" if pauses else ""
        self._update()

    def done(self, row: ResultRow) -> None:
        self._success += row.status == "success"
        self._failed += row.status != "success"
        self._update(advance=1)
        if row.error is not None:
            self._console.print(f"[red]{markup_text(row.id)}[/]: {markup_text(row.error[:300])}")

    def _update(self, advance: int = 0) -> None:
        note = f"{self._success} answered, {self._failed} failed" if self._success or self._failed else ""
        note = (note + self._paused).removeprefix("; ")
        self._progress.update(self._bar, advance=advance, note=note)


def result_panel(result: TaskResult) -> Table:
    """Print the end of one task."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    color = "green" if result.status == "success" else "red"
    table.add_row("answer", f"[{color}]{markup_text(result.answer)}[/]")
    if result.error:
        table.add_row("error", markup_text(result.error))
    calls = calls_text(result.turns, result.tool_calls, result.calls_per_turn)
    table.add_row("turns", f"{calls}, {result.rollbacks} rolled back")
    table.add_row("tokens", markup_text(usage_text(result.usage)))
    table.add_row("time", f"{result.seconds:.1f} s")
    if result.log is not None:
        table.add_row("log", markup_text(str(result.log)))
    return table


def summary_table(summary: Json) -> Table:
    """Print the end of a sweep."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("tasks", f"{summary['tasks']}: {summary['success']} answered, {summary['failed']} failed")
    if summary["exact"] is not None:
        table.add_row("exact", f"{summary['exact']} of {summary['with_ground_truth']} with a known answer")
    table.add_row("turns", calls_text(summary["turns"], summary["tool_calls"], summary["calls_per_turn"]))
    if summary["shared_results"] is not None:
        table.add_row(
            "shared",
            f"{summary['shared_results']:,} tool calls got a result of another task or attempt (shared results): the "
            "attempts are not independent",
        )
    share = "" if summary["cached_share"] is None else f", {summary['cached_share']:.0%} of the prompt cached"
    table.add_row("tokens", f"{summary['prompt_tokens']:,} in, {summary['completion_tokens']:,} out{share}")
    if summary["seconds_median"] is not None:
        table.add_row("time", f"{summary['seconds_median']:.1f} s per task (median)")
    return table


def calls_text(turns: int, calls: int, per_turn: float | None) -> str:
    share = "" if per_turn is None else f" ({per_turn:.1f} per turn)"
    return f"{turns:,}, {calls:,} tool calls{share}"


def cost_text(completion: Completion) -> str:
    usage = completion.usage
    cached = "" if usage.cached_tokens is None else f", {usage.cached_tokens:,} cached"
    waited = f", waited {completion.waited:.1f} s" if completion.waited >= 0.1 else ""
    return (
        f"TTFT {completion.ttft:.2f} s, {completion.seconds:.1f} s{waited}; {usage.prompt_tokens:,} tokens in{cached}, "
        f"{usage.completion_tokens:,} out"
    )


def usage_text(usage: Usage) -> str:
    if usage.cached_tokens is None or not usage.prompt_tokens:
        return f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
    share = usage.cached_tokens / usage.prompt_tokens
    return f"{usage.prompt_tokens:,} in ({share:.0%} from the server's cache), {usage.completion_tokens:,} out"


def call_text(call: ToolCall) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return shortened(f"{call.server}/{call.tool} {arguments}")


def shortened(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def one_line(text: str) -> str:
    return " ".join(text.split())


def markup_text(text: str) -> str:
    """Escape text for rich's markup. Text of a model or a page must not become markup or move the terminal's cursor."""
    return escape("".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text))
