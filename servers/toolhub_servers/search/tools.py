"""Parameters and schemas of the search tools, which are to be those that the models know, letter by letter."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import AliasChoices, Field
from pydantic.json_schema import SkipJsonSchema

logger = logging.getLogger(__name__)

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=True)

# May be null, though the schema knows only the type.
MaybeText = str | SkipJsonSchema[None]
MaybeNumber = int | SkipJsonSchema[None]
MaybeFlag = bool | SkipJsonSchema[None]


def also(name: str, other: str) -> AliasChoices:
    """A parameter `name` that may be called `other`, too; the schema shows only the first."""
    return AliasChoices(name, other)


# The two servers with a sogou_search have different names for the same; models mix them up.
LowerQuery = Annotated[str, Field(validation_alias=also("q", "Query"))]
UpperQuery = Annotated[str, Field(validation_alias=also("Query", "q"))]
LowerCount = Annotated[int, Field(validation_alias=also("num", "Cnt"))]
UpperCount = Annotated[int, Field(validation_alias=also("Cnt", "num"))]


def read_only_tool(function: Callable[..., Awaitable[str]], *, is_titled: bool) -> Tool:
    """is_titled: whether the schema names the arguments as a whole, as the SDK does and standalone fastmcp does not."""
    tool = Tool.from_function(
        _explained(function), description=inspect.getdoc(function), annotations=READ_ONLY, structured_output=False
    )
    if not is_titled:
        del tool.parameters["title"]
    return tool


def _explained(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    """The SDK tells only that a tool failed; whoever reads the log of a task wants to know why."""

    @functools.wraps(function)
    async def call(*args: Any, **arguments: Any) -> str:
        try:
            return await function(*args, **arguments)
        except ToolError:
            raise
        except Exception as exc:
            logger.exception("tool %s failed", function.__name__)
            raise ToolError(f"{type(exc).__name__}: {exc}") from exc

    return call
