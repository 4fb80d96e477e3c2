"""Refuses calls to servers and tools that the config does not offer. The error names similar ones."""

from __future__ import annotations

import difflib
from collections.abc import Coroutine, Mapping
from typing import Any

from toolhub.config import ServerSpec
from toolhub.errors import ToolNotFound
from toolhub.layers import Handler, Layer
from toolhub.model import Call, Result


def is_offered(spec: ServerSpec, tool: str) -> bool:
    """Whether the config's allow and deny lists let `tool` through."""
    rules = spec.tools
    return tool not in rules.deny and (rules.allow is None or tool in rules.allow)


def server_named(specs: Mapping[str, ServerSpec], name: str) -> ServerSpec:
    """Return the spec. Raises ToolNotFound with near names."""
    spec = specs.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, specs, n=2)
        known = ", ".join(sorted(specs)) or "none"
        raise ToolNotFound(f"no server named {name!r} (configured: {known})", near=near)
    return spec


def authorize(specs: Mapping[str, ServerSpec], *, tools: bool = True) -> Layer:
    """Let a call pass only if its server is configured and its tool is offered. Otherwise nothing is sent.

    tools: False for requests, whose `tool` is the name of a method.
    """

    def layer(inner: Handler) -> Handler:
        def handle(call: Call) -> Coroutine[Any, Any, Result]:
            spec = server_named(specs, call.server)
            if tools and not is_offered(spec, call.tool):
                raise ToolNotFound(
                    f"tool {call.tool!r} of server {call.server!r} is switched off in the config "
                    "(tools.deny / tools.allow)"
                )
            return inner(call)

        return handle

    return layer
