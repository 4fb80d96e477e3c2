"""One agent task on a hub: its servers, its sandboxes, and the layers that its calls pass.

A task ends by being closed, by its lease running out, or with the hub. Every process of the task ends with it.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import anyio
import anyio.abc

from toolhub.cassette import KINDS, TaskCassette
from toolhub.channel.base import Refused
from toolhub.config import ServerSpec, SpeculationMode
from toolhub.errors import CallError, HubClosed, MissingExtra, TaskClosed, ToolhubError
from toolhub.extensions import OwnerSandboxes
from toolhub.function_tools import OpenAITools, langchain_tools, named_tools
from toolhub.layers import Handler, stack
from toolhub.layers.admission import admission
from toolhub.layers.authorize import authorize, server_named
from toolhub.layers.cache import cache
from toolhub.layers.coalesce import coalesce
from toolhub.layers.deadline import closed_during, deadline
from toolhub.layers.retry import retry
from toolhub.layers.speculate import TaskSpeculation, speculate
from toolhub.layers.trace import CallCounts, trace
from toolhub.limits.limiter import ConcurrencyLimiter, WaitStats
from toolhub.model import (
    OWN_PROFILE,
    Call,
    ClientProfile,
    FairShareKey,
    Json,
    Listener,
    LogFn,
    ProgressFn,
    RelayedRequest,
    Result,
    ServerInfo,
    TaskStatistics,
    ToolInfo,
    ToolPolicy,
)
from toolhub.sessions.pool import HubResources, SessionPool
from toolhub.sessions.session import ERROR_META, Session
from toolhub.sessions.slot import Slot
from toolhub.tool_names import Prefix

_PLAIN_PARAMS = frozenset({"name", "arguments", "_meta"})
# The lists of a server, and the kind of its notice that one has changed.
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
}
HELLO = "hello"
"""What a server says about itself, among the answers that are saved."""
# Of JSON-RPC.
_INVALID_REQUEST = -32600
_INFO_FIELDS = {field.name for field in fields(ServerInfo)}


class HubTask:
    """One task's tools. Get one from `Hub.task()`; use it from any task of the hub's event loop."""

    def __init__(
        self,
        task_id: str,
        *,
        specs: Mapping[str, ServerSpec],
        owners: anyio.abc.TaskGroup,
        shared: HubResources,
        run: str = "",
        lease: float = math.inf,
        weight: float = 1.0,
        speculation: SpeculationMode | None = None,
        cassette: TaskCassette | None = None,
    ) -> None:
        self.id = task_id
        self.run = run
        self.share_key = FairShareKey(task_id, run, weight, shared.run_weights.get(run, 1.0))
        self.lease = lease
        self.counts = CallCounts()
        self.opened_at = self._renewed_at = anyio.current_time()
        self._shared = shared
        self._owners = owners
        self._numbers = itertools.count(1)
        self._closed = False
        self._users = 0
        self.context = shared.builtin_context(task_id)
        self._servers = {name: self._bind(spec) for name, spec in specs.items()}
        self._limiter = ConcurrencyLimiter(f"task {task_id!r}", shared.task_concurrency, shared.queue)
        self._limiters = {
            name: (self._limiter, *server.limiters, shared.limiter) for name, server in self._servers.items()
        }
        self._waits = WaitStats()
        self._in_flight: set[anyio.CancelScope] = set()
        self._confirming: set[tuple[str, str]] = set()
        """(server, method) of what a client was told before the server was up, and the server is asked now."""
        self._caches = shared.caches.for_task()
        # The layers know the servers but not the task: with no cycle between them a task's memory is free when it ends.
        traced = trace(shared.counts, self.counts, observers=shared.observers)
        limiters_of = partial(_limiters_of, self._limiters)
        admit = admission(limiters_of, self._waits)
        server_of = partial(_server_of, self._servers)
        send_request = partial(_send_request, self._servers)
        bounded = deadline(self._in_flight)
        self._early = TaskSpeculation(
            shared.speculation,
            # A replay asks no server, so there is no work to begin early.
            shared.speculation.mode_for(speculation) if cassette is None or cassette.is_live else "none",
            owners=owners,
            target_of=server_of,
            limiters_of=limiters_of,
            new_call=partial(_early_call, self._servers, task_id, self.share_key, self._numbers),
            required=partial(_required, self._servers),
        )
        answered = cache(self._caches, server_of, shared.shared_results, self.counts)
        self._early.handle = stack(trace(observers=[]), bounded, authorize(specs), answered, self._early.admitted)(
            partial(_send_call, self._servers)
        )
        is_speculative = self._early.mode != "none"
        self._cassette = cassette
        recorded = [[cassette.layer(kind, self._servers, bounded)] if cassette is not None else [] for kind in KINDS]
        self._handle: Handler = stack(
            traced,
            authorize(specs),
            *recorded[0],
            bounded,
            *([speculate(self._early)] if is_speculative else []),
            answered,
            coalesce(shared.coalescer, server_of),
            retry(shared.retry_budget, on_retry=shared.on_retry),
            admit,
        )(partial(_send_call, self._servers))
        self._handle_request: Handler = stack(traced, authorize(specs, tools=False), *recorded[1], bounded, admit)(
            send_request
        )
        self._handle_stream: Handler = bounded(send_request)

    def __repr__(self) -> str:
        return f"<HubTask {self.id} servers={list(self._servers)} calls={self.counts.calls}>"

    def _bind(self, spec: ServerSpec) -> SessionPool:
        if spec.share == "hub":
            return self._shared.shared_server(spec)
        return SessionPool.of(
            spec, context=self.context, owners=self._owners, shared=self._shared, share_key=self.share_key
        )

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the task's servers."""
        return tuple(self._servers)

    @property
    def specs(self) -> Mapping[str, ServerSpec]:
        """The task's servers by name, with its own variables filled in."""
        return {name: server.spec for name, server in self._servers.items()}

    @property
    def sandboxes(self) -> OwnerSandboxes:
        """The task's sandboxes: `create()`, `get(id)`; they end with the task. Raises MissingExtra."""
        if self.context.sandboxes is None:
            raise MissingExtra("hub", "task.sandboxes")
        sandboxes: OwnerSandboxes = self.context.sandboxes
        return sandboxes

    # --- using tools ------------------------------------------------------------------------------------------------

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

        timeout: seconds for everything, waiting included; default is the tool's or the server's from the config.
        Raises ToolNotFound, a CallError (whose `sent` tells whether the server may have executed it), or TaskClosed.
        """
        bound = self._servers.get(server)
        policy = self._shared.catalog.policy(bound.key, bound.spec, tool) if bound else ToolPolicy()
        call = self._call(server, tool, arguments, policy, timeout, on_progress, on_log)
        return await self._run(self._handle, call)

    async def _run(self, handle: Handler, call: Call) -> Result:
        """Run a call through its layers. The lease is held until it ends, and every CallError names it."""
        self._begin_use()
        try:
            return await handle(call)
        except (CallError, HubClosed) as exc:
            if self._closed:
                raise closed_during(call) from exc
            if isinstance(exc, CallError):
                exc.identify(call.id, call.server, call.tool)
            raise
        finally:
            self._end_use()

    def _call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        policy: ToolPolicy,
        timeout: float | None = None,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
        relayed: RelayedRequest | None = None,
    ) -> Call:
        bound = self._servers.get(server)
        # `authorize` refuses a call to an unknown server, so that the refusal is traced: it needs no limit of time.
        longest = bound.spec.call_timeout_s if bound else math.inf
        seconds = timeout if timeout is not None else policy.timeout if policy.timeout is not None else longest
        return Call(
            id=f"{self.id}-{next(self._numbers)}",
            task_id=self.id,
            server=server,
            tool=tool,
            arguments=arguments or {},
            deadline=anyio.current_time() + seconds,
            timeout=seconds,
            policy=policy,
            on_progress=on_progress,
            on_log=on_log,
            share_key=self.share_key,
            relayed=relayed,
        )

    async def prefetch(self, server: str, tool: str, arguments: Mapping[str, Any]) -> None:
        """Announce a call of which some arguments are known already, so that its work can begin. Does not wait.

        It has no effect for a tool that declares nothing of the kind, and where there is no place to spare. The call
        itself must still be made. Raises TaskClosed.
        """
        self._renew()
        self._early.prefetch(server, tool, dict(arguments))

    async def tools(self, server: str | None = None, *, fresh: bool = False) -> list[ToolInfo]:
        """Return the tools of one server, or of all that can be reached, in the config's order.

        fresh: ask the servers themselves, which starts them in parallel. Otherwise the catalog may answer from an
        earlier run; if a server later lists something else, callbacks of `Hub.on_tools_changed` are called. With
        `server=None` a server that cannot be reached is left out (see `tools_by_server`).
        """
        if server is not None:
            server_named(self.specs, server)
            with self.in_use():
                return await self._servers[server].tools(fresh=fresh)
        by_server = await self.tools_by_server(fresh=fresh)
        return [tool for tools in by_server.values() if not isinstance(tools, ToolhubError) for tool in tools]

    async def tools_by_server(self, *, fresh: bool = False) -> dict[str, list[ToolInfo] | ToolhubError]:
        """Ask every server at once. The value is its tools, or its error, which affects no other server."""
        return await self.tools_for_client(OWN_PROFILE, fresh=fresh)

    async def tools_for_client(
        self, profile: ClientProfile, servers: Collection[str] | None = None, *, fresh: bool = False
    ) -> dict[str, list[ToolInfo] | ToolhubError]:
        """Like `tools_by_server()`. profile: of the MCP client that servers are started for. servers: only these."""
        asked = [name for name in self._servers if servers is None or name in servers]
        found: dict[str, list[ToolInfo] | ToolhubError] = dict.fromkeys(asked, [])

        async def ask(name: str) -> None:
            try:
                found[name] = await self._servers[name].tools(profile, fresh=fresh)
            except ToolhubError as exc:
                found[name] = exc

        with self.in_use():
            async with anyio.create_task_group() as asking:
                for name in asked:
                    asking.start_soon(ask, name)
        return found

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

    async def request(self, server: str, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send any MCP request to a server and return its wire result.

        It waits its turn, is traced, and holds the lease as a call does. Raises ToolNotFound, a CallError, TaskClosed.
        """
        call = self._call(server, method, params, ToolPolicy())
        return (await self._run(self._handle_request, call)).raw

    # --- relaying the requests of MCP clients ------------------------------------------------------------------------

    async def relay(self, server: str, relayed: RelayedRequest) -> Json:
        """Pass a client's request on to a server and return the result as it stood on the wire.

        It takes the way of a call; a tool call can be coalesced, cached and repeated. Raises Refused with the server's
        own error, and what `call()` raises.
        """
        params = relayed.params or {}
        if relayed.method != "tools/call":
            saved = self._saved(server, relayed, relayed.method) if relayed.method in LISTS else None
            if saved is not None and is_whole_list(relayed, saved):
                return saved
            call = self._call(server, relayed.method, params, ToolPolicy(), relayed=relayed)
            return _result_or_refusal(await self._run(self._handle_request, call))
        name, arguments = str(params.get("name")), params.get("arguments")
        bound = self._servers.get(server)
        # More than a name and arguments may be a part of something longer: a task, or an answer to a question.
        is_plain = bound is not None and params.keys() <= _PLAIN_PARAMS
        policy = self._shared.catalog.policy(bound.key, bound.spec, name) if bound and is_plain else ToolPolicy()
        given = arguments if isinstance(arguments, dict) else {}
        call = self._call(server, name, given, policy, relayed=relayed)
        return _result_or_refusal(await self._run(self._handle, call))

    async def listen(self, server: str, relayed: RelayedRequest) -> Json:
        """Like `relay()`, for a request whose answer is a stream without an end: no deadline, no place in a queue."""
        call = self._call(server, relayed.method, relayed.params, ToolPolicy(), math.inf, relayed=relayed)
        return _result_or_refusal(await self._run(self._handle_stream, call))

    async def describe(self, server: str, relayed: RelayedRequest, *, saved: bool = False) -> ServerInfo:
        """Return what a server says about itself to this client. Starts it if need be. Raises what `call()` raises.

        saved: do not wait for its start if the server has told an equal client before.
        """
        server_named(self.specs, server)
        info = saved_info(self._saved(server, relayed, HELLO)) if saved else None
        if info is not None:
            return info
        with self.in_use():
            call = self._call(server, relayed.method, None, ToolPolicy(), relayed=relayed)
            async with await _checkout(self._servers, call, uses_state=False) as session:
                self._servers[server].save_answer(HELLO, relayed.profile, session, asdict(session.info))
                return session.info

    def _saved(self, server: str, relayed: RelayedRequest, method: str) -> Json | None:
        """Return what the server told an equal client, and have it confirmed; None if the server must be asked."""
        bound = self._servers.get(server)
        answer = bound.saved_answer(method, relayed.profile) if bound is not None else None
        if answer is not None:
            self._renew()
            if (server, method) not in self._confirming:
                self._confirming.add((server, method))
                self._owners.start_soon(self._confirm, server, relayed, method, answer)
        return answer

    async def _confirm(self, server: str, relayed: RelayedRequest, method: str, told: Json) -> None:
        """Start the server, ask it what its client was told already, and tell the client if that has changed."""
        bound = self._servers[server]
        asked = replace(relayed, requester=_Answered(relayed.requester.id, relayed.requester.listener))
        try:
            with anyio.move_on_after(bound.spec.start_timeout_s + bound.spec.call_timeout_s):
                if method == HELLO:
                    await self.describe(server, asked)
                    return
                if await self.listen(server, asked) != told:  # its client does not wait for it
                    bound.tell_clients(LISTS[method])
        except (ToolhubError, Refused):
            pass  # the next request that needs the server gets the error itself
        finally:
            self._confirming.discard((server, method))

    async def tool_with_headers(self, server: str, name: str, profile: ClientProfile, *, ask: bool) -> ToolInfo | None:
        """Return a tool of which clients repeat parameters in headers; None for others.

        profile: of the client. ask: ask a server for its tools if they are not known. One that is reached over HTTP
        sees the headers itself.
        """
        bound = self._servers[server]
        if bound.spec.transport in ("http", "sse"):
            return None
        if ask and bound.tools_with_headers is None:
            with self.in_use():
                await bound.tools(profile)
        return (bound.tools_with_headers or {}).get(name)

    def offered(self, server: str, tools: list[Json]) -> list[Json]:
        """Return the tools of a server's own list that the config offers, with what the config declares of them."""
        return self._servers[server].offered(tools)

    async def notify(self, server: str, method: str, params: Mapping[str, Any] | None, listener: Listener) -> None:
        """Pass a client's notification on to the sessions that it has used."""
        for slot in self._servers[server].slots:
            if listener in slot.listeners and slot.session is not None:
                await slot.session.notify(method, params)

    # --- life -------------------------------------------------------------------------------------------------------

    async def warm(self) -> dict[str, ToolhubError]:
        """Start every server in parallel, bounded by the hub; return the errors by server."""
        errors: dict[str, ToolhubError] = {}

        async def start(name: str) -> None:
            try:
                await self._servers[name].slot().warm()
            except ToolhubError as exc:
                errors[name] = exc

        with self.in_use():
            async with anyio.create_task_group() as starting:
                for name, server in self._servers.items():
                    if server.spec.share != "call":
                        starting.start_soon(start, name)
        return errors

    def warm_soon(self) -> None:
        """Start the servers marked `keep_warm`, without waiting."""
        for server in self._servers.values():
            if server.spec.keep_warm and server.spec.share != "call":
                self._owners.start_soon(_warm_quietly, server.slot())

    async def renew(self) -> None:
        """Renew the lease. Raises TaskClosed."""
        self._renew()

    def _renew(self) -> None:
        self._raise_if_closed()
        self._renewed_at = anyio.current_time()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise TaskClosed(f"task {self.id!r} is closed; open a new one")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the lease for the length of the block; it runs anew from the block's end. Raises TaskClosed."""
        self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def _begin_use(self) -> None:
        self._raise_if_closed()
        self._users += 1

    def _end_use(self) -> None:
        self._users -= 1
        if not self._users:
            self._renewed_at = anyio.current_time()

    @property
    def lease_left(self) -> float:
        """Seconds until the task is closed for silence; what is in flight holds the lease (`in_use`)."""
        if self._users:
            return self.lease
        return self._renewed_at + self.lease - anyio.current_time()

    def own_slots(self) -> list[Slot]:
        """Return the slots that end with this task."""
        return [slot for server in self._servers.values() if server.owner == self.id for slot in server.slots]

    async def aclose(self) -> None:
        """End every session and sandbox of this task at once. Idempotent; waits until they are gone."""
        self._closed = True
        for call in self._in_flight:
            call.cancel()
        self._early.close()
        self._caches.close()
        if self._cassette is not None:
            for name, server in self._servers.items():
                self._cassette.describe(name, server)
        async with anyio.create_task_group() as closing:
            for server in self._servers.values():
                if server.owner == self.id:
                    closing.start_soon(server.aclose)
            if self.context.sandboxes is not None:
                closing.start_soon(self.context.sandboxes.aclose)

    def statistics(self) -> TaskStatistics:
        return TaskStatistics(
            id=self.id,
            run=self.run,
            age_seconds=anyio.current_time() - self.opened_at,
            lease_seconds=None if math.isinf(self.lease) else self.lease_left,
            calls=self.counts.calls,
            errors=self.counts.errors,
            in_flight=self.counts.in_flight,
            slots=tuple(slot.statistics() for slot in self.own_slots()),
            waiting=self._waits.waiting,
            refusals=self.counts.outcomes.get("Overloaded", 0),
            waited_seconds=self._waits.seconds,
            shared_results=self.counts.shared_results,
        )


class _Answered:
    """A client whose request has been answered: what its server says now goes to the client's stream, if it has one."""

    def __init__(self, number: int | str, listener: Listener | None) -> None:
        self.id = number
        self.listener = listener

    def notify(self, method: str, params: Json | None) -> None:
        if self.listener is not None:
            self.listener.notify(method, params)

    async def request(self, method: str, params: Json | None) -> Json:
        if self.listener is None:
            raise Refused(_INVALID_REQUEST, f"no client waits for an answer, so none can be asked for {method}")
        return await self.listener.request(method, params)

    def close_stream(self) -> None:
        """There is none."""


_Servers = Mapping[str, SessionPool]


def _server_of(servers: _Servers, call: Call) -> SessionPool:
    return servers[call.server]


def _limiters_of(limiters: Mapping[str, tuple[ConcurrencyLimiter, ...]], call: Call) -> tuple[ConcurrencyLimiter, ...]:
    return limiters[call.server]


def _early_call(
    servers: _Servers,
    task_id: str,
    share_key: FairShareKey,
    numbers: Iterator[int],
    server: str,
    tool: str,
    arguments: Json,
) -> Call | None:
    """Return a call that nobody has made yet; None if the task has no such server."""
    bound = servers.get(server)
    if bound is None:
        return None
    policy = bound.shared.catalog.policy(bound.key, bound.spec, tool)
    seconds = policy.timeout or bound.spec.call_timeout_s
    return Call(
        id=f"{task_id}-{next(numbers)}",
        task_id=task_id,
        server=server,
        tool=tool,
        arguments=arguments,
        deadline=anyio.current_time() + seconds,
        timeout=seconds,
        policy=policy,
        share_key=share_key,
    )


def _required(servers: _Servers, call: Call) -> Sequence[str] | None:
    """Return the arguments that a call must have; None for a tool that its server has not listed."""
    bound = servers[call.server]
    tools = bound.shared.catalog.tools(bound.key, bound.spec) or {}
    return tools[call.tool].required if call.tool in tools else None


async def _send_call(servers: _Servers, call: Call) -> Result:
    async with await _checkout(servers, call) as session:
        return await session.call(call)


async def _send_request(servers: _Servers, call: Call) -> Result:
    async with await _checkout(servers, call, uses_state=False) as session:
        if (relayed := call.relayed) is not None:
            result = await session.call(call)
            if is_whole_list(relayed, result.raw):
                servers[call.server].save_answer(relayed.method, relayed.profile, session, result.raw)
            return result
        call.delivery.mark_sent(anyio.current_time())
        return Result(await session.request(call.tool, call.arguments or None))


async def _checkout(servers: _Servers, call: Call, *, uses_state: bool = True) -> AbstractAsyncContextManager[Session]:
    """Check out a session for this call; for a relayed call, one that suits its client."""
    server, relayed = servers[call.server], call.relayed
    if relayed is None:
        return server.checkout(uses_state=uses_state)
    profile = await server.suited(relayed.profile)
    return server.checkout(profile, uses_state=uses_state, listener=relayed.requester.listener)


def is_whole_list(relayed: RelayedRequest, result: Json) -> bool:
    """Whether a result is a list of one page."""
    is_first = (relayed.params or {}).get("cursor") is None
    return relayed.method in LISTS and is_first and "nextCursor" not in result and not result.get("isError")


def saved_info(told: Json | None) -> ServerInfo | None:
    """Return what a server says about itself, as it was saved; None if it was not."""
    return ServerInfo(**told) if told is not None and told.keys() == _INFO_FIELDS else None


def _result_or_refusal(result: Result) -> Json:
    """Return the result. Raises Refused where the server answered with an error."""
    meta = result.raw.get("_meta")
    refused = meta.get(ERROR_META) if isinstance(meta, dict) else None
    if refused:
        raise Refused(refused["code"], refused["message"], refused["data"])
    return result.raw


async def _warm_quietly(slot: Slot) -> None:
    try:
        await slot.warm()
    except ToolhubError:
        pass  # the first call raises the same error to its caller


def new_task_id() -> str:
    return f"task-{uuid.uuid4().hex[:12]}"
