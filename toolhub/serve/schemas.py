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
    labels: dict[str, str] = Field(default_factory=dict)
    servers: dict[str, dict[str, Any] | None] | None = None
    """By name: the task's own server, in the form of the config's `servers`, or null for the hub's server with that
    name. A server of the task's own needs the hub's unix socket or `allow_inline_servers`; null needs neither."""
    only_these: bool = False
    """Leave out the hub's servers that `servers` does not name."""
    partial: bool = False
    """Open the task without the `servers` that cannot be used. The answer lists them under `refused`."""
    lease_s: Seconds | None = None
    weight: Weight = 1
    """The task's share of scarce capacity, relative to the other tasks of its run."""


class CallTool(Body):
    """One tool call. `timeout_s` covers everything, also the time in queues."""

    server: str
    tool: str
    arguments: dict[str, Any] | None = None
    timeout_s: Seconds | None = None
