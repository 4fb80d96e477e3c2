"""The names under which a client or a model sees the tools of several servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

Prefix = Literal["always", "collision", "never"]
"""When the server's name stands before the tool's, as `server__tool`.

`always`: adding a server never renames a tool. `collision`: only for tools whose name several servers have.
`never`: of tools with equal names only that of the first server can be used.
"""


class ToolOrPrompt(Protocol):
    """A tool or a prompt of a server."""

    @property
    def server(self) -> str: ...

    @property
    def name(self) -> str: ...


ToolOrPromptT = TypeVar("ToolOrPromptT", bound=ToolOrPrompt)

SEPARATOR = "__"
# The limit of several model APIs for a function's name.
MAX_NAME = 64
_NOT_IN_FUNCTIONS = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_names(tools: Iterable[ToolOrPromptT], *, prefix: Prefix) -> dict[str, ToolOrPromptT]:
    """Map names of at most MAX_NAME characters to tools. Of tools that get the same name the first one is in it."""
    listed = list(tools)
    plain = _plain_names(listed, prefix)
    exposed: dict[str, ToolOrPromptT] = {}
    for tool in listed:
        exposed.setdefault(_shortened(tool.name if tool.name in plain else qualified(tool)), tool)
    return exposed


def function_names(tools: Iterable[ToolOrPromptT], *, prefix: Prefix) -> dict[str, ToolOrPromptT]:
    """`exposed_names()` of the characters that OpenAI's API allows in a function's name.

    A name with another character ends with a digest, so that it depends on no other tool.
    """
    return {_function_name(name): tool for name, tool in exposed_names(tools, prefix=prefix).items()}


def qualified(tool: ToolOrPrompt) -> str:
    return f"{tool.server}{SEPARATOR}{tool.name}"


def _plain_names(tools: Sequence[ToolOrPrompt], prefix: Prefix) -> set[str]:
    owners = Counter(tool.name for tool in tools)
    if prefix == "always":
        return set()
    if prefix == "never":
        return set(owners)
    # Calls may always use qualified names. A server must not get another's calls by naming a tool like that.
    reserved = {qualified(tool) for tool in tools}
    return {name for name, count in owners.items() if count == 1} - reserved


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else _with_digest(name, name)


def _function_name(name: str) -> str:
    allowed = _NOT_IN_FUNCTIONS.sub("_", name)
    return name if allowed == name else _with_digest(allowed, name)


def _with_digest(name: str, original: str) -> str:
    digest = hashlib.sha256(original.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"
