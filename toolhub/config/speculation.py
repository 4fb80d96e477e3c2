"""The section `speculation`: which work may begin before a call asks for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from toolhub.config.section import Count, Pause, Seconds, Section

SpeculationMode = Literal["none", "exact", "guess"]
Share = Annotated[Pause, Field(le=1)]


class ToolName(Section):
    """One tool of one server."""

    server: str
    """The server's name."""
    tool: str
    """The tool's name."""


class DerivedCall(ToolName):
    """A call whose arguments stand in the result of another one."""

    arguments: dict[str, str] = Field(min_length=1)
    """By argument, its place in the result's JSON, such as `organic.*.link`; `*` counts from the first one on."""


class SpeculationRule(Section):
    """What a task is likely to call after a result."""

    after: ToolName
    """The tool whose results are read."""
    then: DerivedCall
    """The call that may follow. Its tool needs `speculative: allow`."""
    first: Count = 3
    """How many calls one result gives at most."""


class SpeculationSettings(Section):
    """Work that begins before a call asks for it."""

    mode: SpeculationMode = "exact"
    """`none`; `exact`: only what a call that is being written will need; `guess`: `rules` too."""
    rules: list[SpeculationRule] = Field(default_factory=list)
    """What is likely to be called next."""
    min_hit_rate: Share = 0.4
    """A place in a rule of which fewer guesses are used is left out, but for some that measure it again."""
    max_unused: Pause = 0.4
    """Unused guesses per real call of the same tool, besides the first few."""
    in_flight: Count = 4
    """Of one task at a time."""
    keep_s: Seconds = 60
    """How long the result of a guess waits for its call."""
    keep_bytes: Count = 16 * 1024 * 1024
    """Memory for results of one task's guesses."""
