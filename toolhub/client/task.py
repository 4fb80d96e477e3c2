"""One task on a hub elsewhere, with the interface of the embedded `HubTask`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from toolhub.client.errors import HubLost, HubTimeout, HubUnreachable
from toolhub.client.lease_renewer import RenewedTask, lease_renewer
from toolhub.client.transport import Transport
from toolhub.errors import SessionLost, TaskClosed, ToolhubError
from toolhub.model import Json, LogFn, ProgressFn, Result, ToolInfo
from toolhub.wire import error_from_wire, tool_from_wire

# The deadline is the hub's to keep, and it needs time to clean up and to answer. Only a stuck hub takes longer.
MARGIN_S = 30.0
# Closing ends processes: each step of the stop ladder has 2 s, and a queue may be before us.
_CLOSE_S = 60.0


class RemoteTask:
    """Get one from `RemoteHub.task()`. Use it from any thread and event loop; it is renewed while it is held."""

    def __init__(self, transport: Transport, opened: Json, *, timeout: float | None) -> None:
        """opened: what the hub answered. timeout: seconds for calls that do not say."""
        self.id: str = opened["id"]
        self.run: str = opened["run"]
        self.servers: tuple[str, ...] = tuple(opened["servers"])
        self.refused: dict[str, ToolhubError] = {
            name: error_from_wire(wire) for name, wire in opened.get("refused", {}).items()
        }
        """Servers that were asked for and cannot be used."""
        self._transport = transport
        self._timeout = timeout
        self._path = task_path(self.id)
        self._calls = self._path + "/calls"
        self._held = RenewedTask(transport.address, transport.token, self._path, opened.get("lease_s"))
        lease_renewer.watch(self._held)
        self._dropped = weakref.finalize(self, _drop, self._held, os.getpid())
        self._dropped.atexit = False  # at exit the lease_renewer closes them all, with one deadline

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
        """Call a tool and return what it answered; a tool's own failure is a Result with `is_error`.

        timeout: seconds for everything, waiting included; default is the client's, else the config's.
        Raises what `HubTask.call` raises; HubUnreachable if no hub answers (nothing was sent), SessionLost if it
        went away during the call, HubTimeout if it says nothing until well after the timeout. Cancelling cancels
        the call there.
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
            raise HubLost(f"the hub at {self._transport.address} ended the answer before the result")
        result: Json = outcome["result"]
        return result

    async def tools(self, server: str | None = None, *, fresh: bool = False) -> list[ToolInfo]:
        """Return the tools of one server, or of all that can be reached, in the config's order.

        fresh: ask the servers themselves, which starts them; else what the hub knows of them is enough.
        """
        if server is not None:
            (tools,) = (await self._listed(server=server, fresh=fresh)).values()
            if isinstance(tools, ToolhubError):
                raise tools
            return tools
        by_server = await self.tools_by_server(fresh=fresh)
        return [tool for tools in by_server.values() if not isinstance(tools, ToolhubError) for tool in tools]

    async def tools_by_server(self, *, fresh: bool = False) -> dict[str, list[ToolInfo] | ToolhubError]:
        """Ask every server at once; the value is its tools, or the error that costs only this server."""
        return await self._listed(fresh=fresh)

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
        """Give a sign of life; done by itself while the task is held. Raises TaskClosed."""
        self._renew_here()
        await self._transport.request("POST", self._path + "/renew", bound=MARGIN_S, repeatable=True)

    async def aclose(self) -> None:
        """End the task and its processes. Idempotent; a hub that is gone is no error: so are its tasks."""
        self._dropped.detach()
        lease_renewer.drop(self._held)
        try:
            await self._transport.request("DELETE", self._path, bound=_CLOSE_S, repeatable=True)
        except (HubUnreachable, HubLost, TaskClosed):
            pass

    def _renew_here(self) -> None:
        # A forked child that goes on using the task keeps it alive too: its parent may end first.
        if not lease_renewer.is_watching(self._held) and self._dropped.alive:
            lease_renewer.watch(self._held)


def task_path(task_id: str) -> str:
    return f"/v1/tasks/{quote(task_id, safe='')}"


def _tools_of(entry: Json) -> list[ToolInfo] | ToolhubError:
    if entry.get("error"):
        return error_from_wire(entry["error"])
    return [tool_from_wire(tool) for tool in entry["tools"]]


def _drop(held: RenewedTask, pid: int) -> None:
    """A task that nobody holds any more; in a forked child it is still the parent's."""
    if pid == os.getpid():
        lease_renewer.close_soon(held)
