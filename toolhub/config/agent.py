"""The `agent` section: an agent's turns, history and answers. Times are seconds; sizes are tokens unless named."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from toolhub.config.section import Count, Length, Pause, Seconds, Section

Protocol = Literal["xml", "native"]
Eager = Literal["none", "read_only", "all"]


class Sampling(Section):
    """Sent with every request of the loop. None: the server's default."""

    temperature: Annotated[float, Field(ge=0)] | None = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Nucleus sampling."""
    top_k: int | None = None
    """Candidates per token."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """The smallest probability of a candidate, relative to the best one."""
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    """Above 1, tokens that occurred before become less likely."""
    max_tokens: Count = 16384
    """For one turn."""
    seed: int | None = None
    """Seed of the sampling."""
    extra_body: Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})] = Field(default_factory=dict)
    """Further fields of the request body."""


class SubAgentSettings(Section):
    """An agent that the main agent uses as a tool, `agent-<name>/search_and_browse`."""

    servers: list[str] = Field(min_length=1)
    """Names of the configured servers that it may use."""
    max_turns: Count = 20
    """Turns before it must answer."""
    description: str = "Searches and browses for one subtask and reports what it found."
    """What the main agent's model reads about it."""


class AgentSettings(Section):
    """One agent. The defaults are those of MiroThinker 1.7 where it has one."""

    protocol: Protocol = "xml"
    """How the model calls tools: MiroFlow's XML in its text, or the API's own tool calls."""
    servers: list[str] | None = None
    """Names of the configured servers that the main agent sees; None: all."""
    hidden_tools: list[str] = Field(default_factory=list)
    """`server/tool`. These are neither listed nor called."""
    read_only_tools: list[str] = Field(default_factory=list)
    """`server/tool` that may start before the turn ends, besides those whose annotations say read-only."""
    max_turns: Count = 300
    """Turns before the agent must answer."""
    max_context_tokens: Count = 262_144
    """Length of the prompt at which the agent must answer."""
    sampling: Sampling = Field(default_factory=Sampling)
    """Sent with every request."""
    keep_tool_result: int = Field(default=5, ge=-1)
    """Turns whose tool results stay in the prompt; -1: all."""
    trim_every: Length = 0
    """Trim to `keep_tool_result` only after this many further turns; 0: at every turn."""
    eager: Eager = "read_only"
    """Which calls may start while the model still writes its turn."""
    parallel_calls: Count = 8
    """Calls of one turn that may run at once."""
    ask_for_parallel_calls: bool = False
    """Ask the model to make calls that do not depend on each other in one turn."""
    tool_timeout_s: Seconds = 1200
    """For one tool call, waiting included."""
    result_chars: Count = 100_000
    """Characters of a tool's result in the prompt. The rest is cut, with a note."""
    max_rollbacks: Length = 5
    """Rollbacks in a row. The turn after them is kept as it is."""
    discard_retries: Length = 0
    """Restarts from scratch (`discard-all`) of a task that ran out of turns or context without an answer."""
    answer_attempts: Count = 3
    """Requests for the final answer, if one fails or has no answer in it."""
    pause_after_failure_s: Pause = 5
    """Pause before a turn whose request failed is tried again."""
    boxed_answer: bool = True
    """The final answer must stand in \\boxed{}."""
    sub_agents: dict[str, SubAgentSettings] = Field(default_factory=dict)
    """Further agents that the main agent uses as tools, by name."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Replaces the built-in objective. The description of the tools is added to both."""

    @field_validator("hidden_tools", "read_only_tools")
    @classmethod
    def _name_both_parts(cls, names: list[str]) -> list[str]:
        for name in names:
            server, slash, tool = name.partition("/")
            if not (server and slash and tool):
                raise ValueError(f"{name!r} must be server/tool")
        return names
