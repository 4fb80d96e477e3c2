"""An agent loop on a prefix-cached model server.

    from toolhub import Hub, load_config
    from toolhub_agent import Agent

    async with Hub(load_config("hub.yaml")) as hub, hub.task("t1") as task:
        result = await Agent(llm="http://127.0.0.1:8000/v1", tools=task).run("Who wrote Middlemarch?")
        print(result.answer)

The parts work alone, too. `Dispatcher` starts tool calls while any LLM's stream still runs. `open_hints` tells a model
server which prompt comes next. `vllm_plugin` is a scheduler for vLLM and needs nothing of toolhub.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_agent.agent import Agent as Agent
    from toolhub_agent.errors import AgentError as AgentError
    from toolhub_agent.errors import AnswerUnreadable as AnswerUnreadable
    from toolhub_agent.errors import ContextTooLong as ContextTooLong
    from toolhub_agent.errors import LlmError as LlmError
    from toolhub_agent.errors import LlmRefused as LlmRefused
    from toolhub_agent.errors import LlmUnavailable as LlmUnavailable
    from toolhub_agent.errors import ToolFailed as ToolFailed
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
    from toolhub_agent.types import ToolCall as ToolCall
    from toolhub_agent.types import ToolOutcome as ToolOutcome

# Imported when used: the vLLM plugin lives in an environment that has nothing of toolhub.
_LAZY = {
    "Agent": "agent",
    "AgentError": "errors",
    "AnswerUnreadable": "errors",
    "ContextTooLong": "errors",
    "Dispatcher": "tool_calls",
    "HubTools": "tools",
    "LlmClient": "llm",
    "LlmError": "errors",
    "LlmRefused": "errors",
    "LlmRequest": "llm",
    "LlmUnavailable": "errors",
    "Task": "types",
    "TaskLog": "tasklog",
    "TaskResult": "types",
    "ToolCall": "types",
    "ToolCatalog": "tool_calls.catalog",
    "ToolFailed": "errors",
    "ToolOutcome": "types",
    "open_hints": "kv_hints.hinter",
    "open_llm": "llm",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'toolhub_agent' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolhub_agent.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for completion in an editor or a shell."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"]
