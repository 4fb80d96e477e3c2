"""An agent loop on a prefix-cached model server (design section 11).

    from toolhub import Hub, load_config
    from toolhub.config import AgentSettings, LlmSettings
    from toolhub_agent import Agent, HubTools, Surroundings, Task, TaskLog, open_llm

    model = LlmSettings(endpoints=["http://127.0.0.1:8000/v1"])
    async with Hub(load_config("hub.yaml")) as hub, hub.task("t1") as tools, open_llm(model) as llm:
        agent = Agent(Surroundings(llm, AgentSettings()), HubTools(tools))
        result = await agent.run(Task("t1", "Who ...?"), log=TaskLog.create(Path("logs"), "t1", description="Who ...?"))

Its parts work alone, too: `Dispatcher` starts tool calls out of any LLM stream, `open_hints` tells a model server what
comes next, `vllm_plugin` is a scheduler for vLLM and needs nothing of toolhub.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_agent.agent import Agent as Agent
    from toolhub_agent.agent import AgentDeps as Surroundings
    from toolhub_agent.kv_hints.hinter import open_hints as open_hints
    from toolhub_agent.llm import LlmClient as LlmClient
    from toolhub_agent.llm import LlmRequest as LlmRequest
    from toolhub_agent.llm import open_llm as open_llm
    from toolhub_agent.tasklog import TaskLog as TaskLog
    from toolhub_agent.tool_calls import Dispatcher as Dispatcher
    from toolhub_agent.tool_calls.catalog import ToolCatalog as ToolCatalog
    from toolhub_agent.tools import HubTools as HubTools
    from toolhub_agent.types import Task as Task
    from toolhub_agent.types import TaskResult as TaskResult

# Imported when used: the vLLM plugin lives in an environment that has nothing of toolhub.
_LAZY = {
    "Agent": "loop.agent",
    "Dispatcher": "dispatch",
    "HubTools": "tools",
    "LlmClient": "llm",
    "LlmRequest": "llm",
    "Surroundings": "loop.agent",
    "Task": "loop.task",
    "TaskLog": "tasklog",
    "TaskResult": "loop.task",
    "ToolCatalog": "protocol.catalog",
    "open_hints": "hints.hinter",
    "open_llm": "llm",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'toolhub_agent' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolhub_agent.{_LAZY[name]}"), name)
