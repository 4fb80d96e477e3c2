"""Request bodies of the task API. The OpenAPI document is generated from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolhub.config.section import Seconds, Weight


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenTask(Body):
    """A task to open. It ends by DELETE, with the hub, or when its client is silent for longer than its lease."""

    id: str | None = None
    """1 to 128 letters, digits and `._:-`; the first is no dot and no hyphen. The same rule holds for `run` and for
    labels that the config uses as `${task.<label>}`."""
    run: str = Field(default="", max_length=200)
    """The run that the task belongs to. Runs share scarce capacity fairly."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Values for `${task.<label>}` in the config."""
    servers: dict[str, dict[str, Any] | None] | None = None
    """By name: the task's own server, in the form of the config's `servers`, or null for the hub's server with that
    name. A server of the task's own needs the hub's unix socket or `allow_inline_servers`; null needs neither."""
    only_these: bool = False
    """Leave out the hub's servers that `servers` does not name."""
    partial: bool = False
    """Open the task without the `servers` that cannot be used. The answer lists them under `refused`."""
    lease_s: Seconds | None = None
    """How long the task lives without a sign of life; null: `limits.task_lease_s`."""
    weight: Weight = 1
    """The task's share of scarce capacity, relative to the other tasks of its run."""


class CallTool(Body):
    """One tool call. `timeout_s` covers everything, also the time in queues."""

    server: str
    """The name of one of the task's servers."""
    tool: str
    """The name of one of its tools."""
    arguments: dict[str, Any] | None = None
    """The tool's arguments."""
    timeout_s: Seconds | None = None
    """Null: the server's `call_timeout_s`, or the tool's."""
