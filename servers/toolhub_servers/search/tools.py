"""Parameters and schemas of the search tools, which are to be those that the models know, letter by letter."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import AliasChoices, Field

from toolhub_servers._tools import read_only_tool
from toolhub_servers.search.model import Query
from toolhub_servers.search.texts import cleaned

logger = logging.getLogger(__name__)


def also(name: str, other: str) -> AliasChoices:
    """A parameter `name` that may be called `other`, too; the schema shows only the first."""
    return AliasChoices(name, other)


# The two servers with a sogou_search have different names for the same; models mix them up.
LowerQuery = Annotated[str, Field(validation_alias=also("q", "Query"))]
UpperQuery = Annotated[str, Field(validation_alias=also("Query", "q"))]
LowerCount = Annotated[int, Field(validation_alias=also("num", "Cnt"))]
UpperCount = Annotated[int, Field(validation_alias=also("Cnt", "num"))]


def asked(
    q: str,
    gl: str | None,
    hl: str | None,
    location: str | None,
    num: int | None,
    tbs: str | None,
    page: int | None,
    autocorrect: bool | None,
) -> Query:
    """The query that the arguments of a `google_search` mean; null is the default, as if it had not been given."""
    return Query(cleaned(q), gl or "us", hl or "en", location, 10 if num is None else num, tbs, page, autocorrect)


def search_tool(function: Callable[..., Awaitable[str]], *, is_titled: bool) -> Tool:
    """A tool that only reads; see `make_tool`."""
    return read_only_tool(_explained(function), is_titled=is_titled)


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
