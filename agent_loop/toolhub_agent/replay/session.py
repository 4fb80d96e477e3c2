"""Playing a trajectory: the real loop and a real hub, with the recording in the model's place."""

from __future__ import annotations

from dataclasses import replace

from toolhub import Config, Hub
from toolhub.config import AgentSettings
from toolhub_agent.agent import Agent, AgentDeps
from toolhub_agent.events import AgentCallbacks
from toolhub_agent.replay.llm import ReplayLlm
from toolhub_agent.replay.trajectory import Trajectory
from toolhub_agent.tasklog import TaskLog
from toolhub_agent.tools import HubTools
from toolhub_agent.types import Task, TaskResult

# More than any recorded prompt: what did not stop the recorded task must not stop its replay.
_ANY_CONTEXT = 1 << 40


def settings_for(trajectory: Trajectory, settings: AgentSettings) -> AgentSettings:
    """Those of an agent whose turns stand as they were recorded, whatever the tools say today."""
    return settings.model_copy(
        update={
            "protocol": trajectory.protocol,
            "max_rollbacks": 1,
            "discard_retries": 0,
            "max_context_tokens": _ANY_CONTEXT,
        }
    )


async def play(
    trajectory: Trajectory, llm: ReplayLlm, config: Config, viewer: AgentCallbacks, log: TaskLog
) -> TaskResult:
    """Play a task to its end, calling the config's tools. log: of this replay; the caller closes it.

    Raises what the hub raises when it cannot start. That the recording was too short is in the result's `error`.
    """
    settings = settings_for(trajectory, config.agent)
    surroundings = AgentDeps(llm, settings, viewer=viewer)
    async with Hub(config) as hub, hub.task("replay") as tools:
        agent = Agent(surroundings, HubTools(tools, timeout=settings.tool_timeout_s))
        result = await agent.run(Task(trajectory.task_id, trajectory.question), log=log)
    if result.status == "failed" and llm.ended:
        result = replace(result, error=llm.ended[-1])
    return result
