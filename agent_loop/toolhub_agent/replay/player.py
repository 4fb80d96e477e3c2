"""Plays a recording: the real loop and a real hub, with the recording in the model's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolhub import Hub
from toolhub.config import AgentSettings, Config, parse_config
from toolhub_agent.agent import Agent
from toolhub_agent.events import AgentCallbacks
from toolhub_agent.replay.recording import ReplayLlm, Trajectory
from toolhub_agent.tasklog import MAIN, TaskLog
from toolhub_agent.types import Completion, Json, Task, TaskResult, ToolOutcome
from toolhub_agent.view import TaskView, markup_text

# --- The recording that ships -----------------------------------------------------------------------------------------
# The recording that ships, and the tools its agent uses: no key, no network.
#
# The lighthouse is invented, the six documents were written for this. The words are a person's, not a model's: they
# show what a task looks like, not what a model can do.

_DEMO_FOLDER = Path(__file__).parent / "demo"
DEMO_LOG = _DEMO_FOLDER / "trajectory.jsonl"
DEMO_DOCUMENTS = _DEMO_FOLDER / "documents"


def demo_config(workdir: Path) -> Config:
    """Search over the documents, reading them, a sandbox per call, a clock, a plan. workdir: for what they keep."""
    return parse_config(
        {
            "hub": {"state_dir": str(workdir / "state")},
            "agent": {"read_only_tools": ["tool-google-search/google_search"]},
            "servers": {
                "tool-google-search": {
                    "builtin": "google_search",
                    "share": "hub",
                    "options": {
                        "backends": ["local"],
                        "local": {
                            "folder": str(DEMO_DOCUMENTS),
                            "base_url": "https://archive.example",  # not fetched by anyone: names instead of paths
                            "cache_dir": str(workdir / "index"),
                        },
                    },
                    "tools": {"policy": {"google_search": {"read_only": True}}},
                },
                "files": {
                    "builtin": "files",
                    "share": "hub",
                    "options": {"root": str(DEMO_DOCUMENTS)},
                },
                "stateless_python": {
                    "builtin": "stateless_python",
                    "stateful": False,
                },
                "task_planner": {
                    "builtin": "task_planner",
                    "options": {"data_dir": str(workdir / "plans")},
                },
                "clock": {"builtin": "clock", "share": "hub"},
            },
        }
    )


# --- What people see --------------------------------------------------------------------------------------------------
# The live view of `toolhub run`, which marks what was recorded.

NOTICE = "a replay: the model's words are recorded, every tool call below is real"


def banner(trajectory: Trajectory) -> str:
    """Markup. What is played, and what of it is recorded."""
    lines = [f"[bold]toolhub demo --replay[/], {NOTICE}."]
    if trajectory.note:
        lines.append(f"[dim]{markup_text(trajectory.note)}[/]")
    if not trajectory.is_finished:
        lines.append("[yellow]The recorded task did not reach its end; neither will the replay.[/]")
    lines.append(f"\n[bold]Task[/]  {markup_text(trajectory.question)}\n")
    return "\n".join(lines)


class ReplayView(TaskView):
    """Marks every turn as `recorded`: its TTFT, seconds and tokens are. calls: those that were made just now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.calls: list[Json] = []

    def answered(self, agent: str, turn: int, completion: Completion | None, rolled_back: str | None) -> None:
        super().answered("recorded" if agent == MAIN else f"{agent} recorded", turn, completion, rolled_back)

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
                "started_early": outcome.started_early,
            }
        )


# --- Playing ----------------------------------------------------------------------------------------------------------
# Playing a trajectory: the real loop and a real hub, with the recording in the model's place.

# More than any recorded prompt: what did not stop the recorded task must not stop its replay.
_ANY_CONTEXT = 1 << 40


def replay_settings(trajectory: Trajectory, settings: AgentSettings) -> AgentSettings:
    """The settings for a replay: no turn is rolled back, even if a tool behaves differently today."""
    return settings.model_copy(
        update={
            "protocol": trajectory.protocol,
            "max_rollbacks": 1,
            "discard_retries": 0,
            "max_context_tokens": _ANY_CONTEXT,
        }
    )


async def play(
    trajectory: Trajectory, llm: ReplayLlm, config: Config, callbacks: AgentCallbacks, log: TaskLog
) -> TaskResult:
    """Play a task to its end, calling the config's tools. log: of this replay; the caller closes it.

    Raises what the hub raises when it cannot start. That the recording was too short is in the result's `error`.
    """
    settings = replay_settings(trajectory, config.agent)
    async with Hub(config) as hub, hub.task("replay") as tools:
        agent = Agent(llm=llm, tools=tools, settings=settings, callbacks=callbacks)
        result = await agent.run(Task(trajectory.task_id, trajectory.question), log=log)
    if result.status == "failed" and llm.ended:
        result = replace(result, error=llm.ended[-1])
    return result
