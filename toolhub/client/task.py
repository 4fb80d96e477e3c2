"""A task on a hub in another process, with the interface of the embedded `HubTask`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from toolhub.client.lease_renewer import RenewedTask, lease_renewer
from toolhub.client.transport import Transport
from toolhub.errors import HubLost, HubTimeout, HubUnreachable, SessionLost, TaskClosed, ToolhubError
from toolhub.function_tools import OpenAITools, langchain_tools, named_tools
from toolhub.model import Json, LogFn, ProgressFn, Result, ToolInfo
from toolhub.tool_names import Prefix
from toolhub.wire import error_from_wire, tool_from_wire

# The hub keeps the deadline itself, and needs time to clean up and to answer. Only a hub that hangs takes longer.
MARGIN_S = 30.0
# Closing ends processes. Each step of the stop ladder takes up to 2 s, and other tasks may be closed first.
CLOSE_S = 60.0


class RemoteTask:
    """A task, made by `RemoteHub.task()`. It renews its own lease. Use it from any thread and event loop.

    It has what a `HubTask` has for agents, apart from `sandboxes`. `tools()` asks the hub each time.
    """

    def __init__(
        self, transport: Transport, opened: Json, *, timeout: float | None, held_path: str | None = None
    ) -> None:
        """opened: the hub's answer to the opening. timeout: seconds for calls without a timeout of their own.

        held_path: where the task is renewed and closed; default: its path.
        """
        self.id: str = opened["id"]
        self.run: str = opened["run"]
        self.servers: tuple[str, ...] = tuple(opened["servers"])
        self.refused: dict[str, ToolhubError] = {
            name: error_from_wire(wire) for name, wire in opened.get("refused", {}).items()
        }
        """The requested servers that cannot be used, with the reasons."""
        self._transport = transport
        self._timeout = timeout
        self._path = task_path(self.id)
        self._calls = self._path + "/calls"
        self._held_path = held_path or self._path
        self._held = RenewedTask(transport.address, transport.token, self._held_path, opened.get("lease_s"))
        lease_renewer.watch(self._held)
        self._dropped = weakref.finalize(self, _drop, self._held, os.getpid())
        self._dropped.atexit = False  # at exit the lease renewer closes all tasks, with one deadline

    def __repr__(self) -> str:
        return f"<RemoteTask {self.id} at {self._transport.address} servers={list(self.servers)}>"

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Result:
        """Call a tool and return its result. A failure that the tool reports is a Result with `is_error`.

        timeout: seconds for everything, with the time in queues; default: the client's, else the config's.
        Raises what `HubTask.call` raises; HubUnreachable if no hub answers (nothing was sent); SessionLost if the hub
        went away during the call; HubTimeout if it did not answer until long after the timeout. Cancellation cancels
        the call on the hub.
        """
        self._renew_here()
        seconds = self._timeout if timeout is None else timeout
        body: Json = {"server": server, "tool": tool, "arguments": dict(arguments or {})}
        if seconds is not None:
            body["timeout_s"] = seconds
        try:
            if on_progress is not None or on_log is not None:
                return Result(await self._streamed(body, on_progress, on_log))
            bound = None if seconds is None else seconds + MARGIN_S
            return Result((await self._transport.request("POST", self._calls, body, bound=bound))["result"])
        except HubTimeout:
            raise
        except HubLost as exc:
            raise SessionLost(
                f"{exc}; {tool!r} may or may not have been executed", server=server, tool=tool, sent="maybe"
            ) from exc

    async def prefetch(self, server: str, tool: str, arguments: Mapping[str, Any]) -> None:
        """Announce a call of which some arguments are known already, so that its work can begin.

        The hub answers at once. The call itself must still be made. Raises HubUnreachable, HubLost, TaskClosed.
        """
        self._renew_here()
        body: Json = {"server": server, "tool": tool, "arguments": dict(arguments)}
        await self._transport.request("POST", f"{self._path}/prefetch", body, bound=MARGIN_S)

    async def _streamed(self, body: Json, on_progress: ProgressFn | None, on_log: LogFn | None) -> Json:
        outcome: Json = {}

        async def on_line(line: Json) -> None:
            if "progress" in line and on_progress is not None:
                step = line["progress"]
                await on_progress(step["progress"], step.get("total"), step.get("message"))
            elif "log" in line and on_log is not None:
                await on_log(line["log"])
            elif "result" in line or "error" in line:
                outcome.update(line)

        await self._transport.stream(self._calls, body, on_line)
        if "error" in outcome:
            raise error_from_wire(outcome["error"])
        if "result" not in outcome:
            raise HubLost(f"the hub at {self._transport.address} ended its answer before the result")
        result: Json = outcome["result"]
        return result

    async def tools(self, server: str | None = None, *, fresh: bool = False) -> list[ToolInfo]:
        """Return the tools of one server, or of all that can be reached, in the config's order.

        fresh: ask the servers themselves, which starts them. Otherwise the hub may answer from its catalog.
        """
        if server is not None:
            (tools,) = (await self._listed(server=server, fresh=fresh)).values()
            if isinstance(tools, ToolhubError):
                raise tools
            return tools
        by_server = await self.tools_by_server(fresh=fresh)
        return [tool for tools in by_server.values() if not isinstance(tools, ToolhubError) for tool in tools]

    async def tools_by_server(self, *, fresh: bool = False) -> dict[str, list[ToolInfo] | ToolhubError]:
        """Return each server's tools, or the error of that server."""
        return await self._listed(fresh=fresh)

    async def to_openai(self, *, servers: Collection[str] | None = None, prefix: Prefix = "always") -> OpenAITools:
        """Return the tools for OpenAI's API: `definitions` for a request, `call()` for the tool calls of its answer.

        servers: only these; default: all. prefix: `always` names them `server__tool`, so that adding a server renames
        none; `collision` only where two servers have one of that name; `never`. Raises the error of a server whose
        tools cannot be listed, ToolNotFound for an unknown server, ConfigError for two tools of one name.
        """
        return OpenAITools(self, await named_tools(self, servers, prefix))

    async def as_langchain(self, *, servers: Collection[str] | None = None, prefix: Prefix = "always") -> list[Any]:
        """Return the tools as LangChain's; arguments and errors as in `to_openai()`. Needs `langchain-core`."""
        return langchain_tools(self, await named_tools(self, servers, prefix))

    async def _listed(
        self, *, server: str | None = None, fresh: bool = False
    ) -> dict[str, list[ToolInfo] | ToolhubError]:
        self._renew_here()
        wanted = {"server": server} if server is not None else {}
        query = urlencode(wanted | ({"fresh": "true"} if fresh else {}))
        target = f"{self._path}/tools?{query}" if query else f"{self._path}/tools"
        answer = await self._transport.request("GET", target, repeatable=True)
        return {entry["name"]: _tools_of(entry) for entry in answer["servers"]}

    async def warm(self) -> dict[str, ToolhubError]:
        """Start every server now; return the errors by server."""
        self._renew_here()
        answer = await self._transport.request("POST", self._path + "/warm", repeatable=True)
        return {name: error_from_wire(wire) for name, wire in answer["errors"].items()}

    async def renew(self) -> None:
        """Renew the lease now. It is renewed by itself while the task exists. Raises TaskClosed."""
        self._renew_here()
        await self._transport.request("POST", self._path + "/renew", bound=MARGIN_S, repeatable=True)

    async def aclose(self) -> None:
        """End the task and its processes.

        Idempotent. It is no error if the hub has ended, because its tasks have too.
        """
        self._let_go()
        try:
            await self._transport.request("DELETE", self._path, bound=CLOSE_S, repeatable=True)
        except (HubUnreachable, HubLost, TaskClosed):
            pass

    def _let_go(self) -> None:
        """Renew the lease no more."""
        self._dropped.detach()
        lease_renewer.drop(self._held)

    def _renew_here(self) -> None:
        # A forked child that uses the task renews it too, because its parent may end first.
        if not lease_renewer.is_watching(self._held) and self._dropped.alive:
            lease_renewer.watch(self._held)


def task_path(task_id: str) -> str:
    return f"/v1/tasks/{quote(task_id, safe='')}"


def _tools_of(entry: Json) -> list[ToolInfo] | ToolhubError:
    if entry.get("error"):
        return error_from_wire(entry["error"])
    return [tool_from_wire(tool) for tool in entry["tools"]]


def _drop(held: RenewedTask, pid: int) -> None:
    """Close a task that was garbage-collected. In a forked child the task still belongs to the parent."""
    if pid == os.getpid():
        lease_renewer.close_soon(held)
