"""`hub.tools: search`: a client sees two tools, with which a model finds and calls all the others.

The ranking is the BM25 of SQLite's full-text search (FTS5), which comes with Python. An index is made for each search:
300 tools take about 3 ms, and no index can be out of date.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace

from toolhub.model import Json
from toolhub.serve.mcp.client import ClientRequest
from toolhub.serve.mcp.merged import MergedServers, joined, refuse_cursor

DEFAULT_LIMIT, MAX_LIMIT = 5, 20
# A word of a tool's name says more than one of its description.
_NAME_WEIGHT = 3.0
# What is longer is searched up to here, so that a search takes milliseconds.
_INDEXED_CHARS, _MAX_WORDS = 4000, 64
_SHOWN = ("name", "title", "description", "inputSchema", "annotations")
# Between the words of camelCase, and round each character of a script that has no spaces between words.
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[\u3040-\u30ff\u3400-\u9fff])|(?=[\u3040-\u30ff\u3400-\u9fff])")

_CALL_TOOL: Json = {
    "name": "call_tool",
    "description": "Call a tool that find_tools has returned. The result is the tool's own.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The tool's name, as find_tools returned it."},
            "arguments": {"type": "object", "description": "Its arguments, as its inputSchema describes them."},
        },
        "required": ["name"],
    },
}


class ToolSearch:
    """Answers `tools/list` and `tools/call` of a client that searches for tools."""

    def __init__(self, merged: MergedServers) -> None:
        self._merged = merged

    async def answer(self, request: ClientRequest, call: Callable[[ClientRequest], Awaitable[Json]]) -> Json:
        """Answer the request. call: passes on a call of a tool by its own name, which a client may make as well."""
        if request.method == "tools/list":
            refuse_cursor(request)
            return joined(request, "tools", [_find_tools(request.servers), _CALL_TOOL])
        params = request.params or {}
        given = params.get("arguments")
        arguments = given if isinstance(given, dict) else {}
        if params.get("name") == "find_tools":
            return await self._find(request, arguments)
        if params.get("name") != "call_tool":
            return await call(request)
        if not isinstance(arguments.get("name"), str) or not isinstance(arguments.get("arguments", {}), dict):
            return _failed(request, "call_tool needs the tool's `name`, a string, and its `arguments`, an object")
        kept = {key: value for key, value in params.items() if key != "arguments"}
        sent = kept | {key: arguments[key] for key in ("name", "arguments") if key in arguments}
        # The headers repeat parameters of call_tool, not of the tool.
        return await call(replace(request, params=sent, headers=None))

    async def _find(self, request: ClientRequest, arguments: Json) -> Json:
        query, limit = arguments.get("query"), arguments.get("limit", DEFAULT_LIMIT)
        if not isinstance(query, str) or isinstance(limit, bool) or not isinstance(limit, int):
            return _failed(request, "find_tools needs a `query`, a string; `limit` is a whole number")
        tools = await self._merged.tools(request)
        names = [f"{self._merged.owner(request, name).server} {name}" for name, _ in tools]
        texts = [f"{tool.get('title') or ''} {tool.get('description') or ''}" for _, tool in tools]
        best = ranked(query, list(zip(names, texts, strict=True)))[: max(1, min(limit, MAX_LIMIT))]
        found = [
            {key: shown[key] for key in _SHOWN if key in shown}
            for shown in ({**tools[number][1], "name": tools[number][0]} for number in best)
        ]
        told = {"tools": found, "total": len(tools)}
        text = json.dumps(told, ensure_ascii=False) if found else f"None of {len(tools)} tools has a word of {query!r}"
        return _result(request, {"content": [{"type": "text", "text": text}], "structuredContent": told})


def ranked(query: str, documents: Sequence[tuple[str, str]]) -> list[int]:
    """Return the numbers of the documents (name, text) that have a word of the query, best first."""
    words = re.findall(r"\w+", _spaced(query).replace("_", " "))[:_MAX_WORDS]
    if not words:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("CREATE VIRTUAL TABLE tools USING fts5(name, text, tokenize='porter unicode61')")
        rows = ((number, _spaced(name), _spaced(text)) for number, (name, text) in enumerate(documents))
        index.executemany("INSERT INTO tools (rowid, name, text) VALUES (?, ?, ?)", rows)
        found = index.execute(
            "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, ?, 1.0), rowid",
            (" OR ".join(f'"{word}"' for word in words), _NAME_WEIGHT),
        )
        return [number for (number,) in found]


def _spaced(text: str) -> str:
    # JSON can hold half a surrogate pair, which SQLite does not take.
    return _WORD_ENDS.sub(" ", text[:_INDEXED_CHARS].encode(errors="replace").decode())


def _find_tools(servers: Sequence[str]) -> Json:
    return {
        "name": "find_tools",
        "description": (
            "Search for tools by what they do. Returns names, descriptions and input schemas, best first; "
            f"call them with call_tool. Servers: {', '.join(servers)}."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words of the name or the description."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def _failed(request: ClientRequest, text: str) -> Json:
    return _result(request, {"content": [{"type": "text", "text": text}], "isError": True})


def _result(request: ClientRequest, result: Json) -> Json:
    return result | ({"resultType": "complete"} if request.era == "modern" else {})
