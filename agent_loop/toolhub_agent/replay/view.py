"""What people see of a replay: the live view of `toolhub run`, with a mark on what is not of now."""

from __future__ import annotations

from rich.console import Console

from toolhub_agent.replay.trajectory import Trajectory
from toolhub_agent.run.view import TaskView, shown
from toolhub_agent.tasklog import MAIN
from toolhub_agent.types import Completion, Json, ToolOutcome

NOTICE = "a replay: the model's words are recorded, every tool call below is real"


def banner(trajectory: Trajectory) -> str:
    """Markup. What is played, and what of it is recorded."""
    lines = [f"[bold]toolhub demo --replay[/], {NOTICE}."]
    if trajectory.note:
        lines.append(f"[dim]{shown(trajectory.note)}[/]")
    if not trajectory.is_finished:
        lines.append("[yellow]The recorded task did not reach its end; neither will the replay.[/]")
    lines.append(f"\n[bold]Task[/]  {shown(trajectory.question)}\n")
    return "\n".join(lines)


class ReplayView(TaskView):
    """Says `recorded` before every turn: its TTFT, seconds and tokens are the recording's. calls: made just now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.calls: list[Json] = []

    def answered(self, agent: str, turn: int, completion: Completion | None, taken_back: str | None) -> None:
        super().answered("recorded" if agent == MAIN else f"{agent} recorded", turn, completion, taken_back)

    def called(self, agent: str, outcome: ToolOutcome) -> None:
        super().called(agent, outcome)
        self.calls.append(
            {
                "agent": agent,
                "server": outcome.call.server,
                "tool": outcome.call.tool,
                "seconds": round(outcome.seconds, 4),
                "chars": len(outcome.text),
                "error": outcome.text[:300] if outcome.is_error else None,
                "begun_while_the_model_wrote": outcome.started_early,
            }
        )
