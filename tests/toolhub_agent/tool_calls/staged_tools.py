"""Tools whose calls begin and end when a test says so."""

from __future__ import annotations

import json
from collections import defaultdict

import anyio
from toolhub_agent.tool_calls import CallEvent, CallFinished, CallStarted, Dispatcher
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.types import Json, ToolCall

READ_ONLY = {"readOnlyHint": True}
CATALOG = ToolCatalog.of(
    [
        {"name": "web", "tools": [{"name": "search", "schema": {}, "annotations": READ_ONLY}]},
        {
            "name": "sh",
            "tools": [
                {"name": "run", "schema": {}},
                {"name": "look", "schema": {}, "annotations": READ_ONLY},
            ],
        },
        {"name": "files", "tools": [{"name": "write", "schema": {}}]},
        {"name": "agent-browsing", "tools": [{"name": "search_and_browse", "schema": {}}]},
    ]
)


class StagedTools:
    """`execute` for a dispatcher. A call is named by its argument `n`; it ends when the test releases it.

    log: what happened, in order: `start n`, `end n`, `cancel n`.
    """

    def __init__(self, *, held: bool = True) -> None:
        self.log: list[str] = []
        self.calls: list[ToolCall] = []
        self._held = held
        self._begun: defaultdict[object, anyio.Event] = defaultdict(anyio.Event)
        self._released: defaultdict[object, anyio.Event] = defaultdict(anyio.Event)

    async def __call__(self, call: ToolCall) -> str:
        name = call.arguments.get("n")
        self.calls.append(call)
        self.log.append(f"start {name}")
        self._begun[name].set()
        try:
            if self._held:
                await self._released[name].wait()
        except anyio.get_cancelled_exc_class():
            self.log.append(f"cancel {name}")
            raise
        self.log.append(f"end {name}")
        return f"result {name}"

    async def wait_begun(self, name: object) -> None:
        await self._begun[name].wait()

    def release(self, *names: object) -> None:
        for name in names:
            self._released[name].set()


class Events:
    """Keeps what an observer is told, as (kind, n)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def __call__(self, event: CallEvent) -> None:
        if isinstance(event, CallStarted):
            self.told.append(("early" if event.early else "started", event.call.arguments.get("n")))
        elif isinstance(event, CallFinished):
            self.told.append(("finished", event.outcome.call.arguments.get("n")))


async def settled() -> None:
    """Let every task run until it waits for something."""
    await anyio.wait_all_tasks_blocked()


async def texts(turn: Dispatcher) -> list[str]:
    return [outcome.text async for outcome in turn.results()]


def xml(server: str, tool: str, n: object) -> str:
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{json.dumps({'n': n})}\n</arguments>\n</use_mcp_tool>\n"
    )


def search(n: object) -> str:
    return xml("web", "search", n)


def run(n: object) -> str:
    return xml("sh", "run", n)


def native(n: object, *, index: int = 0, name: str = "web-search", id: str | None = None) -> Json:
    return {"index": index, "id": id or f"c{index}", "function": {"name": name, "arguments": json.dumps({"n": n})}}
