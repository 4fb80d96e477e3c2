"""The task API: open and close tasks, list tools, call tools."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.config import ServerSpec, parse_server
from toolhub.errors import ConfigError, ToolhubError, Unauthorized
from toolhub.hub import Hub
from toolhub.model import Json, LogFn, ProgressFn, Result
from toolhub.serve.openapi import CallToolRequest, OpenTaskRequest, PrefetchRequest
from toolhub.serve.responses import (
    CLIENT_CLOSED_REQUEST,
    CallStream,
    Endpoint,
    answering,
    finite,
    json_response,
    read_body,
    while_connected,
)
from toolhub.task import HubTask
from toolhub.wire import NDJSON, error_to_wire, tool_to_wire


class TaskApi:
    """The routes of one hub.

    allow_inline: whether a TCP client may bring its own servers, which means that it can start any program on this
    machine. Clients on the unix socket always may: its file mode admits only users who can start programs anyway.
    lease: seconds, for tasks that request none.
    """

    def __init__(self, hub: Hub, *, allow_inline: bool, lease: float) -> None:
        self._hub = hub
        self._allow_inline = allow_inline
        self._lease = lease

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Endpoint]] = [
            ("POST", "/v1/tasks/{id}/calls", self.call),  # first, because most requests are calls
            ("GET", "/v1/servers", self.list_servers),
            ("POST", "/v1/tasks", self.open_task),
            ("GET", "/v1/tasks", self.list_tasks),
            ("GET", "/v1/tasks/{id}", self.show_task),
            ("DELETE", "/v1/tasks/{id}", self.close_task),
            ("POST", "/v1/tasks/{id}/renew", self.renew),
            ("POST", "/v1/tasks/{id}/warm", self.warm),
            ("GET", "/v1/tasks/{id}/tools", self.tools),
            ("POST", "/v1/tasks/{id}/prefetch", self.prefetch),
            ("GET", "/v1/statistics", self.statistics),
        ]
        return [Route(path, answering(endpoint), methods=[method]) for method, path, endpoint in table]

    async def open_task(self, request: Request) -> Response:
        """Open a task."""
        body = await read_body(request, OpenTaskRequest)
        allow_inline = self._allow_inline or request.scope["server"][1] is None
        specs: dict[str, ServerSpec] = {}
        refused: dict[str, ToolhubError] = {}
        for name, entry in (body.servers or {}).items():
            try:
                specs[name] = self._spec(name, entry, allow_inline=allow_inline)
            except ToolhubError as exc:
                if not body.partial:
                    raise
                refused[name] = exc
        scope = await self._hub.open_task(
            body.id,
            run=body.run,
            labels=body.labels,
            servers={name: spec for name, spec in specs.items() if not spec.disabled},
            only_these=body.only_these,
            lease=body.lease_s or self._lease,
            weight=body.weight,
            speculation=body.speculation,
        )
        answer: Json = {
            "id": scope.id,
            "run": scope.run,
            "servers": list(scope.servers),
            "lease_s": finite(scope.lease),
        }
        if body.partial:
            answer["refused"] = {name: error_to_wire(exc) for name, exc in refused.items()}
        return json_response(answer, 201)

    def _spec(self, name: str, entry: Json | None, *, allow_inline: bool) -> ServerSpec:
        """Return the spec of a requested server: the hub's, or the one that `entry` describes."""
        configured = self._hub.config.servers
        if entry is None:
            if name not in configured:
                known = ", ".join(configured) or "none"
                raise ConfigError(f"the hub's config has no server {name!r}; it has: {known}")
            return configured[name]
        if not allow_inline:
            raise Unauthorized(
                f"server {name!r} was refused: this hub starts no servers of TCP clients. "
                f"Put {name!r} into the hub's config and ask for it by name (for a ToolManager the name alone is "
                f'enough: {{"name": "{name}"}}), or use the hub\'s unix socket, or start the hub with '
                "--allow-inline-servers"
            )
        return parse_server(name, entry, path="request")

    async def list_servers(self, request: Request) -> Response:
        """List the servers of the hub's config."""
        specs = self._hub.config.servers.values()
        return json_response(
            {"servers": [{"name": spec.name, "transport": spec.transport, "share": spec.share} for spec in specs]}
        )

    async def list_tasks(self, request: Request) -> Response:
        """List the open tasks with their statistics."""
        return json_response({"tasks": [dataclasses.asdict(scope.statistics()) for scope in self._hub.tasks]})

    async def show_task(self, request: Request) -> Response:
        """Show one task's statistics."""
        return json_response(dataclasses.asdict(self._task(request).statistics()))

    async def close_task(self, request: Request) -> Response:
        """End a task with all its processes. It is no error if the task is not open."""
        await self._hub.close_task(request.path_params["id"])
        return Response(status_code=204)

    async def renew(self, request: Request) -> Response:
        """Renew the task's lease."""
        scope = self._task(request)
        await scope.renew()
        return json_response({"lease_s": finite(scope.lease)})

    async def warm(self, request: Request) -> Response:
        """Start every server of the task now. Returns the errors by server."""
        errors = await while_connected(request, self._task(request).warm())
        return json_response({"errors": {name: error_to_wire(exc) for name, exc in (errors or {}).items()}})

    async def tools(self, request: Request) -> Response:
        """List tools by server; a server that cannot be reached has an error instead. `fresh=true` asks the servers."""
        scope = self._task(request)
        wanted = request.query_params.get("server")
        fresh = request.query_params.get("fresh", "") in ("true", "1")
        if wanted is not None:
            found = {wanted: await scope.tools(wanted, fresh=fresh)}
            return json_response({"servers": [_listed(name, tools) for name, tools in found.items()]})
        by_server = await while_connected(request, scope.tools_by_server(fresh=fresh))
        return json_response({"servers": [_listed(name, tools) for name, tools in (by_server or {}).items()]})

    async def call(self, request: Request) -> Response:
        """Call a tool. `Accept: application/x-ndjson` streams progress and logs. Disconnecting cancels the call."""
        scope = self._task(request)
        body = await read_body(request, CallToolRequest)

        async def run(on_progress: ProgressFn | None = None, on_log: LogFn | None = None) -> Result:
            return await scope.call(
                body.server,
                body.tool,
                body.arguments,
                timeout=body.timeout_s,
                on_progress=on_progress,
                on_log=on_log,
            )

        if NDJSON in request.headers.get("accept", ""):
            return CallStream(run)
        result = await while_connected(request, run())
        return json_response({"result": result.raw}) if result else Response(status_code=CLIENT_CLOSED_REQUEST)

    async def prefetch(self, request: Request) -> Response:
        """Announce a call that is being written, so that its work can begin. Answers at once."""
        scope = self._task(request)
        body = await read_body(request, PrefetchRequest)
        await scope.prefetch(body.server, body.tool, body.arguments)
        return Response(status_code=202)

    async def statistics(self, request: Request) -> Response:
        """Return all counters of the hub."""
        return json_response(dataclasses.asdict(self._hub.statistics()))

    def _task(self, request: Request) -> HubTask:
        return self._hub.get_task(request.path_params["id"])


def _listed(name: str, tools: object) -> Json:
    if isinstance(tools, ToolhubError):
        return {"name": name, "tools": [], "error": error_to_wire(tools)}
    assert isinstance(tools, list)
    return {"name": name, "tools": [tool_to_wire(tool) for tool in tools], "error": None}
