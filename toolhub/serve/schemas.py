"""Request bodies of the task API; the OpenAPI page is made from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolhub.config.section import Seconds, Weight


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenTask(Body):
    """A task to open. It ends by DELETE, by silence longer than its lease, or with the hub."""

    id: str | None = None
    """1 to 128 letters, digits and `._:-`, with neither a dot nor a hyphen first. The same holds for `run` and for
    labels where the config uses them as `${task.<label>}`."""
    run: str = Field(default="", max_length=200)
    labels: dict[str, str] = Field(default_factory=dict)
    servers: dict[str, dict[str, Any] | None] | None = None
    """By name: a server of the task's own, in the form of the config's `servers`, or null for the hub's server of that
    name. Servers of its own need the hub's unix socket or `allow_inline_servers`; null needs neither."""
    only_these: bool = False
    """Leave out the hub's servers that `servers` does not name."""
    partial: bool = False
    """Open the task without those of `servers` that cannot be used; the answer tells them under `refused`."""
    lease_s: Seconds | None = None
    weight: Weight = 1
    """The task's share of what is scarce, beside the other tasks of its run."""


class CallTool(Body):
    """One tool call. `timeout_s` covers everything, waiting included."""

    server: str
    tool: str
    arguments: dict[str, Any] | None = None
    timeout_s: Seconds | None = None
