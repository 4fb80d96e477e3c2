"""Several servers behind one client: lists are joined, and each request goes to the server that its name belongs to.

The lists of a task are asked for once and again whenever a name is not in them. A server that cannot be reached is left
out of a list, and its error is logged; a request that names it gets the error itself.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio

from toolhub.channel.base import Refused
from toolhub.channel.mcp import with_subscription_id
from toolhub.channel.pages import all_pages
from toolhub.errors import ToolhubError, ToolNotFound
from toolhub.model import Json
from toolhub.serve.mcp.checks import check_headers
from toolhub.serve.mcp.client import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MOST_SUBSCRIPTIONS,
    ClientRequest,
    GatewayTask,
)
from toolhub.serve.mcp.handles import call_tool
from toolhub.serve.mcp.names import (
    Owned,
    callable_names,
    matches_template,
    near_names,
    split_name,
)
from toolhub.tool_names import Prefix, exposed_names

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
# Tasks of servers whose server is remembered, for each session.
MOST_TASKS = 10_000
# Clients of one task that see other servers each. What was learnt for more of them is learnt again.
_MOST_SELECTIONS = 64
_LISTS = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "tasks/list": "tasks",
}
_CAPABILITY = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "tasks/list": "tasks",
}
_NAMED_BY = {"prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "tasks": "taskId"}
# Revision 2026-07-28 has it no more.
_ONLY_HANDSHAKE = "tasks/list"

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class OwnerIndex:
    """The servers of one task's tools, prompts, resources and tasks, as far as they were asked for."""

    tools: dict[str, Owned] = field(default_factory=dict)
    prompts: dict[str, Owned] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    """The server of each URI."""
    templates: list[tuple[str, str]] = field(default_factory=list)
    """(template, server), in the order of the config."""
    tasks: dict[str, str] = field(default_factory=dict)
    """The server of each task that a server has begun, oldest first."""

    def remember_task(self, server: str, result: Json) -> None:
        """Remember the server of a task that a result begins: of the tasks extension, or of revision 2025-11-25."""
        begun = result if result.get("resultType") == "task" else result.get("task")
        if isinstance(begun, dict) and isinstance(task_id := begun.get("taskId"), str):
            self.tasks.pop(task_id, None)
            self.tasks[task_id] = server
            if len(self.tasks) > MOST_TASKS:
                del self.tasks[next(iter(self.tasks))]

    def owner_of(self, uri: str) -> str | None:
        """Return the server of a resource; None if it is not known."""
        owner = self.resources.get(uri)
        if owner is not None:
            return owner
        fitting = (server for template, server in self.templates if uri == template or matches_template(uri, template))
        return next(fitting, None)


class MergedServers:
    """Answers for tasks with several servers, or none."""

    def __init__(self, prefix: Prefix) -> None:
        self._prefix = prefix
        self._known: weakref.WeakKeyDictionary[GatewayTask, dict[frozenset[str] | None, OwnerIndex]] = (
            weakref.WeakKeyDictionary()
        )

    async def describe(self, request: ClientRequest) -> Json:
        """Return what the servers say about themselves together: the union of their capabilities."""
        infos = await _gather(request, lambda server: request.task.describe(server, request.relayed(), saved=True))
        capabilities: Json = {"tools": {"listChanged": True}}
        for info in infos.values():
            capabilities = _united(capabilities, info.capabilities)
        told = [f"# {server}\n\n{info.instructions}" for server, info in infos.items() if info.instructions]
        return {"capabilities": capabilities, **({"instructions": "\n\n".join(told)} if told else {})}

    async def answer(self, request: ClientRequest) -> Json:
        method, params = request.method, request.params or {}
        if method == "tools/list":
            return await self._list_tools(request)
        if method in _LISTS and (method != _ONLY_HANDSHAKE or request.era == "handshake"):
            return await self._list(request)
        if method == "logging/setLevel":
            return await self._set_level(request)
        server, sent = await self._route(request, method, dict(params))
        if method == "tools/call":
            result = await call_tool(server, request, sent)
        else:
            result = await request.task.relay(server, request.relayed(sent))
        self._of(request).remember_task(server, result)
        return result

    def owner(self, request: ClientRequest, name: str) -> Owned:
        """Return the tool of a name that `tools()` has returned."""
        return self._of(request).tools[name]

    def _of(self, request: ClientRequest) -> OwnerIndex:
        """Return what is known of the servers of a request: clients that see other servers see other names."""
        selections = self._known.setdefault(request.task, {})
        known = selections.get(request.only)
        if known is None:
            known = selections[request.only] = OwnerIndex()
            if len(selections) > _MOST_SELECTIONS:
                del selections[next(iter(selections))]
        return known

    # --- lists ------------------------------------------------------------------------------------------------------

    async def _list_tools(self, request: ClientRequest) -> Json:
        refuse_cursor(request)
        tools = await self.tools(request)
        return joined(request, "tools", [{**raw, "name": name} for name, raw in tools])

    async def tools(self, request: ClientRequest) -> list[tuple[str, Json]]:
        """Return (listed name, tool) of every tool that can be reached."""
        found: dict[Owned, Json] = {}
        for server, tools in (await request.task.tools_for_client(request.profile, request.servers)).items():
            if isinstance(tools, ToolhubError):
                logger.warning("the tools of server %r are not listed: %s", server, tools)
            else:
                found |= {Owned(server, tool.name): tool.raw for tool in tools}
        self._of(request).tools = callable_names(found, self._prefix)
        exposed = exposed_names(found, prefix=self._prefix)
        if left_out := found.keys() - exposed.values():
            logger.warning(
                "several servers have tools of one name, and hub.tool_prefix is %r; not listed: %s",
                self._prefix,
                ", ".join(sorted(f"{one.server}/{one.name}" for one in left_out)),
            )
        return [(name, found[owned]) for name, owned in exposed.items()]

    async def _list(self, request: ClientRequest) -> Json:
        refuse_cursor(request)
        key = _LISTS[request.method]
        pages = await self._pages(request, request.method)
        known = self._of(request)
        if key == "prompts":
            found = {Owned(server, one["name"]): one for server, listed in pages.items() for one in listed}
            known.prompts = callable_names(found, self._prefix)
            exposed = exposed_names(found, prefix=self._prefix)
            return joined(request, key, [{**found[one], "name": name} for name, one in exposed.items()])
        if key == "resources":
            owners: dict[str, str] = {}
            for server, listed in pages.items():
                for one in listed:
                    owners.setdefault(one["uri"], server)
            known.resources = owners
            return joined(
                request, key, [one for server in pages for one in pages[server] if owners[one["uri"]] == server]
            )
        if key == "tasks":
            for server, listed in pages.items():
                for one in listed:
                    known.remember_task(server, {"task": one})
        else:
            known.templates = [(one["uriTemplate"], server) for server, listed in pages.items() for one in listed]
        return joined(request, key, [one for listed in pages.values() for one in listed])

    async def _pages(self, request: ClientRequest, method: str) -> dict[str, list[Json]]:
        """Return all entries of a list by server."""
        key = _LISTS[method]

        async def ask(server: str) -> list[Json]:
            info = await request.task.describe(server, request.relayed(), saved=True)
            if _CAPABILITY[method] not in info.capabilities:
                return []
            listed = await all_pages(
                server,
                method,
                key,
                lambda at: request.task.relay(server, request.relayed(_with_cursor(request.params, at), method=method)),
            )
            return [one for one in listed if isinstance(one.get(_NAMED_BY[key]), str)]

        return await _gather(request, ask)

    # --- one server -------------------------------------------------------------------------------------------------

    async def _route(self, request: ClientRequest, method: str, params: Json) -> tuple[str, Json]:
        """Return the server that a request is for, and the params that it knows. Raises Refused, ToolNotFound."""
        if method == "tools/call":
            owned = await self._tool(request, str(params.get("name")))
            await check_headers(owned.server, owned.name, request)
            return owned.server, {**params, "name": owned.name}
        if method == "prompts/get":
            owned = await self._prompt(request, str(params.get("name")))
            return owned.server, {**params, "name": owned.name}
        if method == "completion/complete":
            return await self._completion(request, params)
        if isinstance(uri := params.get("uri"), str):
            return await self._resource(request, uri), params
        if method.startswith("tasks/") and isinstance(task_id := params.get("taskId"), str):
            return await self._server_of_task(request, task_id), params
        raise Refused(
            METHOD_NOT_FOUND,
            f"toolhub cannot tell which of the servers {', '.join(request.servers)} {method!r} is for",
        )

    async def _tool(self, request: ClientRequest, name: str) -> Owned:
        known = self._of(request)
        if name not in known.tools:
            await self.tools(request)
        # A server whose tools could not be listed: its own error says more than "unknown tool".
        owned = known.tools.get(name) or split_name(name, request.servers)
        if owned is None:
            raise ToolNotFound(f"Unknown tool: {name}", near=near_names(name, known.tools))
        return owned

    async def _prompt(self, request: ClientRequest, name: str) -> Owned:
        known = self._of(request)
        if name not in known.prompts:
            pages = await self._pages(request, "prompts/list")
            listed = [Owned(server, one["name"]) for server, page in pages.items() for one in page]
            known.prompts = callable_names(listed, self._prefix)
        owned = known.prompts.get(name) or split_name(name, request.servers)
        if owned is None:
            raise ToolNotFound(f"Unknown prompt: {name}", near=near_names(name, known.prompts))
        return owned

    async def _server_of_task(self, request: ClientRequest, task_id: str) -> str:
        """Return the server of a task: the one that began it, else the only one that has tasks."""
        known = self._of(request).tasks.get(task_id)
        if known is not None:
            return known
        infos = await _gather(request, lambda server: request.task.describe(server, request.relayed(), saved=True))
        with_tasks = [
            server
            for server, info in infos.items()
            if "tasks" in info.capabilities or TASKS_EXTENSION in (info.capabilities.get("extensions") or {})
        ]
        if len(with_tasks) == 1:
            return with_tasks[0]
        raise Refused(
            INVALID_PARAMS,
            f"Unknown task: {task_id}. toolhub remembers the servers of the last {MOST_TASKS} tasks of a session; "
            f"those that have tasks: {', '.join(with_tasks) or 'none'}",
        )

    async def _completion(self, request: ClientRequest, params: Json) -> tuple[str, Json]:
        ref = params.get("ref")
        if isinstance(ref, dict) and ref.get("type") == "ref/prompt":
            owned = await self._prompt(request, str(ref.get("name")))
            return owned.server, {**params, "ref": {**ref, "name": owned.name}}
        if isinstance(ref, dict) and isinstance(uri := ref.get("uri"), str):
            return await self._resource(request, uri), params
        raise Refused(INVALID_PARAMS, "completion/complete needs a ref to a prompt or a resource")

    async def _resource(self, request: ClientRequest, uri: str) -> str:
        """Return the server of a resource: by its URI, else by a template."""
        known = self._of(request)
        if (owner := known.owner_of(uri)) is None:
            listed = await self._pages(request, "resources/list")
            templates = await self._pages(request, "resources/templates/list")
            for server, entries in listed.items():
                for one in entries:
                    known.resources.setdefault(one["uri"], server)
            known.templates = [(one["uriTemplate"], server) for server, page in templates.items() for one in page]
            owner = known.owner_of(uri)
        if owner is None:
            raise Refused(INVALID_PARAMS, "Resource not found", {"uri": uri})
        return owner

    # --- all servers ------------------------------------------------------------------------------------------------

    async def _set_level(self, request: ClientRequest) -> Json:
        async def set_level(server: str) -> None:
            info = await request.task.describe(server, request.relayed())
            if "logging" in info.capabilities:
                await request.task.relay(server, request.relayed())

        await _gather(request, set_level)
        return {}

    async def listen(self, request: ClientRequest) -> None:
        """Listen to every server at once, until cancelled. The client's stream begins with one acknowledgement."""
        subscription = Subscription(request)
        if len(subscription.subscriptions) > MOST_SUBSCRIPTIONS:
            raise Refused(INVALID_PARAMS, f"a client may subscribe to {MOST_SUBSCRIPTIONS} resources at a time")
        subscription.acknowledge()

        async def listen(server: str) -> None:
            relayed = replace(request.relayed(), requester=subscription)
            info = await request.task.describe(server, relayed)
            if info.era == "modern":
                await request.task.listen(server, relayed)
                return
            for uri in subscription.subscriptions:
                await request.task.relay(server, replace(relayed, method="resources/subscribe", params={"uri": uri}))

        await _gather(request, listen)
        await anyio.sleep_forever()


_KINDS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


class Subscription:
    """A client that has subscribed with `subscriptions/listen`, as servers see it.

    Modern servers acknowledge each, and the client expects one acknowledgement. To servers of the handshake era it is
    the client's stream for what belongs to no request.
    """

    def __init__(self, request: ClientRequest) -> None:
        wanted = (request.params or {}).get("notifications")
        self._wanted: Json = wanted if isinstance(wanted, dict) else {}
        self._request = request
        self.id = request.id
        self.listener = self
        self.subscriptions = {uri for uri in self._wanted.get("resourceSubscriptions") or () if isinstance(uri, str)}
        task_ids = self._wanted.get("taskIds")
        self._task_ids = task_ids if isinstance(task_ids, list) else []
        self.log_level: str | None = None

    def acknowledge(self) -> None:
        self._send("notifications/subscriptions/acknowledged", {"notifications": self._wanted})

    def notify(self, method: str, params: Json | None) -> None:
        uri = (params or {}).get("uri")
        if self._wanted.get(_KINDS.get(method, "")) is True:
            self._send(method, params)
        elif method == "notifications/resources/updated" and uri in self.subscriptions:
            self._send(method, params)
        elif method == "notifications/tasks" and (params or {}).get("taskId") in self._task_ids:
            self._send(method, params)

    def _send(self, method: str, params: Json | None) -> None:
        self._request.notify(method, with_subscription_id(params or {}, self.id))

    async def request(self, method: str, params: Json | None) -> Json:
        return await self._request.request(method, params)

    def close_stream(self) -> None:
        """Streams of subscriptions are not resumed."""


async def _gather(request: ClientRequest, ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Ask every server at once; return the answers in the config's order, without those that failed."""
    found: dict[str, T] = {}

    async def one(server: str) -> None:
        try:
            found[server] = await ask(server)
        except (ToolhubError, Refused) as exc:
            logger.warning("server %r is left out of the answer to %s: %s", server, request.method, exc)

    async with anyio.create_task_group() as asking:
        for server in request.servers:
            asking.start_soon(one, server)
    return {server: found[server] for server in request.servers if server in found}


def refuse_cursor(request: ClientRequest) -> None:
    """Joined lists have one page, so no cursor was ever given out."""
    cursor = (request.params or {}).get("cursor")
    if cursor is not None:
        raise Refused(INVALID_PARAMS, f"Invalid cursor: {cursor}")


def _with_cursor(params: Json | None, cursor: str | None) -> Json | None:
    return params if cursor is None else {**(params or {}), "cursor": cursor}


def joined(request: ClientRequest, key: str, listed: list[Json]) -> Json:
    envelope: Json = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return {**(envelope if request.era == "modern" else {}), key: listed}


def _united(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """Join two objects: what either of them offers is offered."""
    united = dict(one)
    for key, value in other.items():
        mine = united.get(key)
        united[key] = _united(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else mine or value
    return united
