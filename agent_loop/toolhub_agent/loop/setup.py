"""What an agent begins with: the tools it may use, its system prompt, its conversation."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from toolhub.config import AgentSettings, SubAgentSettings
from toolhub_agent.model import Json
from toolhub_agent.protocol.prompt import system_prompt
from toolhub_agent.tool_calls.catalog import SUB_AGENT_PREFIX, ToolCatalog

SUB_AGENT_TOOL = "search_and_browse"


def definitions_for(definitions: Iterable[Json], servers: Sequence[str] | None) -> list[Json]:
    """Those of some servers, in the order of the definitions; None: all."""
    return [entry for entry in definitions if servers is None or entry["name"] in servers]


def sub_agent_definitions(sub_agents: Mapping[str, SubAgentSettings]) -> list[Json]:
    """Sub-agents as the main agent sees them: servers with one tool."""
    return [
        {
            "name": SUB_AGENT_PREFIX + name,
            "tools": [
                {
                    "name": SUB_AGENT_TOOL,
                    "description": settings.description,
                    "schema": {
                        "properties": {"subtask": {"title": "Subtask", "type": "string"}},
                        "required": ["subtask"],
                        "title": f"{SUB_AGENT_TOOL}Arguments",
                        "type": "object",
                    },
                }
            ],
        }
        for name, settings in sub_agents.items()
    ]


def catalog_of(definitions: Iterable[Json], settings: AgentSettings) -> ToolCatalog:
    return ToolCatalog.of(definitions, read_only=settings.read_only_tools, hidden=settings.hidden_tools)


def prompt_of(catalog: ToolCatalog, settings: AgentSettings, objective: str, date: datetime.date) -> str:
    """date: of the task's start, the same for all of its conversations."""
    return system_prompt(catalog, date=date, objective=objective, protocol=settings.protocol)
