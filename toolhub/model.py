"""The values that travel through the hub: frozen, without behaviour beyond reading them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from toolhub.errors import Sent

Json = dict[str, Any]

PREFETCH_META = "toolhub/prefetch"
"""In a tool's `_meta`: the names of the arguments with which its server can begin before the call is complete.

In the `_meta` of a `tools/call`: true; the server begins that work and does not execute the tool.
"""

ProgressFn = Callable[[float, float | None, str | None], Coroutine[Any, Any, None]]
"""Receives (progress, total, message) while the call runs."""

LogFn = Callable[[Json], Coroutine[Any, Any, None]]
"""Receives the params of `notifications/message`: ``{"level", "logger"?, "data"}``."""


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """One tool as its server describes it; `raw` is the wire object with every field it had."""

    server: str
    name: str
    description: str | None
    input_schema: Json
    raw: Json = field(repr=False, default_factory=dict)

    @classmethod
    def from_wire(cls, server: str, tool: Json) -> ToolInfo:
        """Read one entry of `tools/list`. Raises KeyError when it has no name."""
        schema = tool.get("inputSchema")
        return cls(server, tool["name"], tool.get("description"), schema if isinstance(schema, dict) else {}, tool)

    @property
    def annotations(self) -> Json:
        """The tool's hints, such as `readOnlyHint`; what the config declares overrules the server."""
        hints = self.raw.get("annotations")
        return hints if isinstance(hints, dict) else {}

    @property
    def is_read_only(self) -> bool:
        return bool(self.annotations.get("readOnlyHint"))

    @property
    def prefetch(self) -> tuple[str, ...]:
        """The arguments with which work can begin before a call is complete; none where the server knows no such."""
        meta = self.raw.get("_meta")
        return _texts(meta.get(PREFETCH_META)) if isinstance(meta, dict) else ()

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments that a call must have."""
        return _texts(self.input_schema.get("required"))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered, as it stood on the wire; an `is_error` result is for the model to read."""

    raw: Json

    @property
    def content(self) -> list[Json]:
        """Content blocks as wire dicts, e.g. ``{"type": "text", "text": ...}``."""
        blocks = self.raw.get("content")
        return blocks if isinstance(blocks, list) else []

    @property
    def structured(self) -> Any:
        """`structuredContent`, or None."""
        return self.raw.get("structuredContent")

    @property
    def is_error(self) -> bool:
        return bool(self.raw.get("isError", False))

    @property
    def text(self) -> str:
        """All text blocks joined by newlines."""
        return "\n".join(block["text"] for block in self.content if isinstance(block.get("text"), str))


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What the config declares about a tool; a server's own annotations are only defaults for it."""

    read_only: bool = False
    idempotent: bool = False
    timeout: float | None = None
    speculative: bool = False
    """Whole calls may be guessed."""
    prefetch: tuple[str, ...] = ()
    """Arguments with which its server can begin before the call is complete."""

    @property
    def is_safe_to_repeat(self) -> bool:
        return self.read_only or self.idempotent


@dataclass(slots=True)
class Delivery:
    """How far a call got: `sent` is "maybe" from the moment its request may have left for the server.

    The session marks it; a retry and a call that joined another one's execution take over what happened before.
    """

    sent: Sent = "no"
    attempts: int = 0
    sent_at: float | None = None
    """When it was last sent, on the anyio clock."""
    speculated: bool = False
    """Its work had begun before it was made."""

    def mark_sent(self, now: float) -> None:
        """The request is about to leave. now: on the anyio clock."""
        self.sent, self.sent_at = "maybe", now

    def mark_unsent(self) -> None:
        """The server cannot have seen the request."""
        self.sent = "no"

    def absorb(self, other: Delivery) -> None:
        """Add what happened to an equal call that was made for this one too."""
        self.attempts += other.attempts
        self.sent_at = other.sent_at or self.sent_at
        if other.sent == "maybe":
            self.sent = "maybe"


@dataclass(frozen=True, slots=True)
class FairShareKey:
    """The run and task that a call counts for in fair queues. Runs share fairly, and within a run its tasks.

    weight: the task's share beside the other tasks of its run. run_weight: the run's share beside other runs.
    """

    task: str = ""
    run: str = ""
    weight: float = 1.0
    run_weight: float = 1.0


Era = Literal["handshake", "modern"]
"""The generation of MCP: `handshake` up to revision 2025-11-25, `modern` from 2026-07-28."""


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """On whose behalf a session is opened. A client in another era, or with other capabilities, has another profile.

    hello: the params of `initialize` in the handshake era; None: toolhub introduces itself.
    """

    era: Era = "handshake"
    key: str = ""
    """Equal for clients that may use one session."""
    hello: Json | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, era: Era, hello: Json) -> ClientProfile:
        """Return the profile of a client that says this about itself.

        Clients that can be asked nothing, and so have no capabilities, are alike.
        """
        capabilities = hello.get("capabilities") or {}
        key = json.dumps(capabilities, sort_keys=True) if capabilities and era == "handshake" else ""
        return cls(era, key, hello)

    def in_handshake_era(self) -> ClientProfile:
        return self.of("handshake", self.hello) if self.hello else OWN_PROFILE

    def in_other_era(self) -> ClientProfile:
        return self.in_handshake_era() if self.era == "modern" else ClientProfile("modern", "", self.hello)


OWN_PROFILE = ClientProfile()
"""The profile of calls that no MCP client makes."""


class Listener(Protocol):
    """A client with a stream for what belongs to no request."""

    @property
    def subscriptions(self) -> set[str]:
        """The URIs of the resources whose updates it wants."""
        ...

    @property
    def log_level(self) -> str | None:
        """The level of log lines that it has set last."""
        ...

    def notify(self, method: str, params: Json | None) -> None:
        """Pass a notification on, without waiting."""
        ...

    async def request(self, method: str, params: Json | None) -> Json:
        """Ask the client and return its result. Raises `channel.base.Refused` with the client's error."""
        ...


class Requester(Protocol):
    """The client of one relayed request. What the server says or asks while it answers goes here."""

    @property
    def id(self) -> int | str:
        """The id of the request, as the client chose it."""
        ...

    @property
    def listener(self) -> Listener | None:
        """The client's stream for the rest; None in the modern era, which has none."""
        ...

    def notify(self, method: str, params: Json | None) -> None: ...

    async def request(self, method: str, params: Json | None) -> Json: ...

    def close_stream(self) -> None:
        """The server has closed the stream of this request's answer, and will go on when the client resumes it."""
        ...


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A client's request as it stood on the wire. Its server gets it unchanged."""

    method: str
    params: Json | None
    requester: Requester
    profile: ClientProfile
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's headers that repeat parameters (`Mcp-Param-*`), for servers over HTTP."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call on its way through the layers. `deadline` is absolute on the anyio clock."""

    id: str
    task_id: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    deadline: float
    timeout: float
    policy: ToolPolicy = ToolPolicy()
    on_progress: ProgressFn | None = None
    on_log: LogFn | None = None
    delivery: Delivery = field(default_factory=Delivery)
    share_key: FairShareKey = FairShareKey()
    relayed: RelayedRequest | None = None
    """The request of an MCP client that this call passes on; `tool` is its method where it is no tool call."""
    early: Literal["prefetch", "guess"] | None = None
    """What kind of speculative work this is; None for a call that somebody made."""

    @property
    def is_tool_call(self) -> bool:
        return self.relayed is None or self.relayed.method == "tools/call"

    @property
    def profile(self) -> ClientProfile | None:
        """The client's profile; None for a call that is not relayed."""
        return self.relayed.profile if self.relayed is not None else None


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Identifies a slot: server, owner, environment, and the number of the instance."""

    server: str
    owner: str
    fingerprint: str
    instance: int = 0
    profile: ClientProfile = OWN_PROFILE


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server said about itself when the session was set up."""

    name: str
    version: str
    protocol: str
    capabilities: Json = field(default_factory=dict)
    instructions: str | None = None
    hello: Json = field(default_factory=dict, repr=False)
    """Its whole answer to `initialize` or `server/discover`."""

    @property
    def era(self) -> Era:
        return "modern" if self.protocol >= "2026" else "handshake"


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """One slot at one moment. Ages and times are seconds."""

    server: str
    owner: str
    state: str
    pid: int | None
    starts: int
    deaths: int
    calls: int
    in_flight: int
    start_seconds: float | None
    idle_seconds: float
    last_error: str | None
    protocol: str | None = None
    era: str | None = None


@dataclass(frozen=True, slots=True)
class LimiterStatistics:
    """One limiter at one moment. waits: how many calls had to wait. waited_seconds: how long they waited in all."""

    name: str
    limit: int
    in_use: int
    waiting: int
    refusals: int
    waits: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """What the sessions of a hub use together. A limit of None is no limit; memory_bytes is None if not measured.

    waiting: starts that wait for room. evictions: idle sessions that were ended to make room.
    """

    processes: int
    processes_limit: int | None
    memory_bytes: int | None
    memory_limit: int | None
    open_files: int
    open_files_limit: int | None
    waiting: int
    evictions: int
    refusals: int


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """One server, for all tasks together. state: `ok`, `failing` (its last start failed) or `given_up`.

    since: when it stopped working, as Unix time; last_error: with its last stderr lines; task: the task of that server.
    """

    server: str
    starts: int = 0
    deaths: int = 0
    state: str = "ok"
    since: float | None = None
    last_error: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One task at one moment."""

    id: str
    run: str
    age_seconds: float
    lease_seconds: float | None
    calls: int
    errors: int
    in_flight: int
    slots: tuple[SlotStatistics, ...]
    waiting: int = 0
    """Calls that wait for a limiter."""
    refusals: int = 0
    waited_seconds: float = 0.0
    shared_results: int = 0
    """Calls that got a result of another task or attempt from the store on disk."""
    paused: str = ""
    """For how long the model has served none of its requests, and why; "" if nothing keeps it from the model."""


@dataclass(frozen=True, slots=True)
class SandboxCounts:
    """The sandboxes of a hub: in use, ready in pools, created so far. memory_bytes: of all; None if unknown."""

    live: int
    ready: int
    created: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class CoalesceStatistics:
    """executions: calls made that others could join. coalesced: calls that joined one. in_flight: executions now."""

    executions: int = 0
    coalesced: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """prefetches, guesses: begun. used: of both, by a call. preempted: made way. refused: without a place or budget."""

    prefetches: int = 0
    guesses: int = 0
    used: int = 0
    preempted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Lookups so far, and what is kept now. evictions: answers dropped to make room, not for their age."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SharedResultsStatistics:
    """Look-ups in the store of shared results so far. is_on: False since the store could not be used."""

    hits: int = 0
    misses: int = 0
    is_on: bool = True


@dataclass(frozen=True, slots=True)
class CassetteStatistics:
    """Exchanges recorded or replayed so far. lost: could not be written. missed: calls that were not recorded."""

    recorded: int = 0
    lost: int = 0
    replayed: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class HubStatistics:
    """The hub at one moment; `started_at` is Unix time."""

    pid: int
    tasks: tuple[TaskStatistics, ...]
    shared: tuple[SlotStatistics, ...]
    calls: int
    errors: int
    starts: int
    deaths: int
    retries: int
    started_at: float
    sandboxes: SandboxCounts | None = None
    limiters: tuple[LimiterStatistics, ...] = ()
    budget: BudgetStatistics | None = None
    coalescing: CoalesceStatistics = CoalesceStatistics()
    cache: CacheStatistics = CacheStatistics()
    shared_results: SharedResultsStatistics | None = None
    cassette: CassetteStatistics | None = None
    servers: tuple[ServerHealth, ...] = ()
    """Those that were started so far."""
    speculation: SpeculationStatistics = SpeculationStatistics()
