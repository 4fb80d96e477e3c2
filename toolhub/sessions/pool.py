"""The sessions of one server for one owner: a task, or the hub for all tasks. Also lists the server's tools."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import anyio.abc

from toolhub.catalog.answers import SavedAnswers, answer_name, answers_may_be_saved
from toolhub.catalog.catalog import Catalog, with_declarations
from toolhub.channel.base import Channel
from toolhub.channel.mcp import header_map
from toolhub.config import Limits, ServerSpec
from toolhub.errors import CallTimeout, HubClosed, ToolhubError
from toolhub.extensions import BuiltinContext, SandboxProvider
from toolhub.layers.authorize import is_offered
from toolhub.layers.cache import Caches, SharedResults
from toolhub.layers.coalesce import Coalescer
from toolhub.layers.speculate import Speculation
from toolhub.layers.trace import CallCounts, Observer
from toolhub.limits.adaptive import AdaptiveLimit
from toolhub.limits.backoff import RetryBudget
from toolhub.limits.budget import Budget
from toolhub.limits.limiter import ConcurrencyLimiter
from toolhub.limits.start_limiter import StartLimiter
from toolhub.model import OWN_PROFILE, ClientProfile, Era, FairShareKey, Json, Listener, ServerInfo, SlotKey, ToolInfo
from toolhub.sessions.events import ServerEvents
from toolhub.sessions.session import Session
from toolhub.sessions.slot import Counters, Slot
from toolhub.shared_resources import SharedResources

# Clients choose what they say about themselves. Beyond this number of kinds they share the sessions of others.
_MOST_PROFILES = 8
# Servers whose era is remembered. Tasks with servers of their own add some all the time.
_MOST_ERAS = 10_000

ChannelOpener = Callable[[ServerSpec, BuiltinContext, ClientProfile], AbstractAsyncContextManager[Channel]]


@dataclass(eq=False)
class HubResources:
    """What every task of a hub uses together."""

    open_channel: ChannelOpener
    starts: StartLimiter
    catalog: Catalog
    answers: SavedAnswers
    limiter: ConcurrencyLimiter
    counts: CallCounts
    totals: Counters
    events: ServerEvents
    observers: list[Observer]
    retry_budget: RetryBudget
    on_retry: Callable[[], None]
    shared_server: Callable[[ServerSpec], SessionPool]
    tools_listeners: list[Callable[[str], None]]
    queue: int
    task_concurrency: int
    run_weights: Mapping[str, float]
    resources: SharedResources
    budget: Budget
    coalescer: Coalescer
    caches: Caches
    speculation: Speculation
    server_limiter: Callable[[ServerSpec], ConcurrencyLimiter | None]
    """The hub-wide limit of a server, for those that have one."""
    shared_results: SharedResults | None = None
    has_cassette: bool = False
    """Tasks are recorded or replayed, so what their clients are told must come from the servers, or the recording."""
    sandboxes: SandboxProvider | None = None
    eras: dict[str, Era] = field(default_factory=dict)
    """The newest era that each server knows, by its fingerprint. To ask again would cost a start, or some seconds."""

    def builtin_context(self, owner: str) -> BuiltinContext:
        """Return what the builtin servers of an owner are given."""
        return BuiltinContext(
            owner, self.sandboxes.for_owner(owner) if self.sandboxes is not None else None, self.resources
        )


class ServerLimiters:
    """The hub-wide limiters of servers: one per server for all tasks, whatever environment each task gives it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._limiters: dict[str, ConcurrencyLimiter] = {}

    @property
    def all(self) -> list[ConcurrencyLimiter]:
        return list(self._limiters.values())

    def __call__(self, spec: ServerSpec) -> ConcurrencyLimiter | None:
        """Return the limiter of a server; None if only the hub's limit applies."""
        if not spec.adaptive and spec.hub_concurrency is None:
            return None
        key = f"{spec.name}:{spec.template_fingerprint}"
        limiter = self._limiters.get(key)
        if limiter is None:
            most = spec.hub_concurrency or self._limits.concurrency
            adaptive = AdaptiveLimit(maximum=most) if spec.adaptive else None
            limiter = ConcurrencyLimiter(
                f"server {spec.name!r} in the whole hub", most, self._limits.queue, adaptive=adaptive
            )
            self._limiters[key] = limiter
        return limiter


@dataclass(eq=False)
class SessionPool:
    """The sessions of one server for one owner (a task, or the hub): its slots and its limiter."""

    spec: ServerSpec
    fingerprint: str
    context: BuiltinContext
    owners: anyio.abc.TaskGroup
    shared: HubResources
    share_key: FairShareKey
    limiters: tuple[ConcurrencyLimiter, ...]
    """The limiters that a call passes, in this order:

    of this pool, and of the server in the whole hub if it has one.
    """
    slots: list[Slot] = field(default_factory=list)
    writes: int = 0
    """Calls that ended and may have changed what the server keeps (see `layers.sameness`)."""
    changes: int = 0
    """How often the server said that its tools changed."""
    _closed: bool = False
    _looked_at: Mapping[str, ToolInfo] | None = None
    _with_headers: Mapping[str, ToolInfo] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        spec: ServerSpec,
        *,
        context: BuiltinContext,
        owners: anyio.abc.TaskGroup,
        shared: HubResources,
        share_key: FairShareKey,
    ) -> SessionPool:
        own = ConcurrencyLimiter(f"server {spec.name!r}", spec.concurrency * spec.instances, shared.queue)
        wide = shared.server_limiter(spec)
        limiters = (own,) if wide is None else (own, wide)
        return cls(spec, spec.fingerprint(), context, owners, shared, share_key, limiters)

    @functools.cached_property
    def _template_fingerprint(self) -> str:
        return self.spec.template_fingerprint

    @property
    def owner(self) -> str:
        return self.context.owner

    @property
    def key(self) -> str:
        """The key of this server in the catalog. Two names for one program are two servers."""
        return f"{self.spec.name}:{self.fingerprint}"

    def slot(self, profile: ClientProfile = OWN_PROFILE) -> Slot:
        """Return the least busy slot. Another instance is added only while all others are busy.

        A server that keeps state has one session for all clients of its owner: that of the client that came first.
        Others have one for each kind of client.
        """
        slots = self.slots
        if self.spec.is_stateful:
            if self.spec.instances == 1 and slots:
                slots[0].adopt(profile)
                return slots[0]
        elif len(slots) != 1 or slots[0].key.profile != profile:
            kinds = {slot.key.profile for slot in slots}
            if profile not in kinds and len(kinds) >= _MOST_PROFILES:
                profile = slots[0].key.profile
            slots = [slot for slot in slots if slot.key.profile == profile]
        best = min(slots, key=lambda slot: slot.in_use, default=None)
        if best is None or (best.in_use and len(slots) < self.spec.instances):
            best = self.new_slot(len(slots), profile)
            self.slots.append(best)
        return best

    def new_slot(self, instance: int, profile: ClientProfile = OWN_PROFILE) -> Slot:
        if self._closed:
            raise HubClosed(f"server {self.spec.name!r} is being shut down")
        return Slot(
            SlotKey(self.spec.name, self.owner, self.fingerprint, instance, profile),
            self.spec,
            open_channel=self._open_channel,
            owners=self.owners,
            starts=self.shared.starts,
            on_session=self._watch_session,
            totals=self.shared.totals,
            events=self.shared.events,
            budget=self.shared.budget,
            share_key=self.share_key,
        )

    @asynccontextmanager
    async def _open_channel(self, spec: ServerSpec, profile: ClientProfile) -> AsyncIterator[Channel]:
        async with self.shared.open_channel(spec, self.context, profile) as channel:
            if profile.era == "modern":
                self._learn_era(channel.info.era)
            yield channel

    def _learn_era(self, era: Era) -> None:
        """Note the newest era that the server knows. Sessions of the other one are of clients as `suited` sees them."""
        if len(self.shared.eras) < _MOST_ERAS:
            self.shared.eras[self._template_fingerprint] = era
        for slot in self.slots:
            if era == "handshake" and slot.key.profile.era == "modern":
                slot.profile = slot.profile.in_handshake_era()
                slot.key = replace(slot.key, profile=slot.profile)

    def _watch_session(self, session: Session) -> None:
        session.on_tools_changed(self._tools_changed)
        if self.shared.catalog.is_unverified(self.key, self.spec):
            self.owners.start_soon(self._verify, session, name=f"verify the tools of {self.spec.name}")

    async def _verify(self, session: Session) -> None:
        """Compare the tools that were listed from the catalog with what the server lists now."""
        try:
            await self._ask(session)
        except ToolhubError:
            pass  # the next start asks again; a call that needs the server gets the error itself

    def _tools_changed(self) -> None:
        self.changes += 1
        self.shared.catalog.forget(self.key, self.spec)
        self._tell_change()

    def _tell_change(self) -> None:
        for listener in self.shared.tools_listeners:
            listener(self.spec.name)

    def tell_clients(self, kind: str) -> None:
        """Tell the clients that the server's list of a kind is not what they were told before it was up."""
        for listener in {listener for slot in self.slots for listener in slot.listeners}:
            listener.notify(f"notifications/{kind}/list_changed", None)

    # --- answers from before the server was up ------------------------------------------------------------------------

    def saved_answer(self, method: str, profile: ClientProfile) -> Json | None:
        """Return what the server told an equal client first, if it is not up and has not failed."""
        if not self._may_save or any(slot.session is not None or slot.counters.deaths for slot in self.slots):
            return None
        return self.shared.answers.get(self.spec, answer_name(method, profile))

    def save_answer(self, method: str, profile: ClientProfile, session: Session, answer: Json) -> None:
        """Save an answer of a session that is as it was when it was opened, and was opened for this client."""
        opened_for = next((slot.profile for slot in self.slots if slot.session is session), None)
        if self._may_save and not session.calls and opened_for is not None and opened_for.hello == profile.hello:
            self.shared.answers.put(self.spec, answer_name(method, profile), answer)

    @property
    def _may_save(self) -> bool:
        return not self.shared.has_cassette and answers_may_be_saved(self.spec, self.fingerprint)

    async def ask_for_tools(self, profile: ClientProfile) -> None:
        """Have the server list its tools if it has not, so that what it says about them holds for the next call."""
        if not self.shared.catalog.is_verified(self.key):
            await self.tools(profile, fresh=True)

    def may_change(self, tool: str) -> bool:
        """Whether a tool may change what the server answers later."""
        return self.spec.is_stateful and not self.shared.catalog.policy(self.key, self.spec, tool).read_only

    def description(self) -> tuple[ServerInfo | None, list[Json] | None]:
        """Return what a live session said about the server, and the offered tools, so far as they are known."""
        info = next((slot.session.info for slot in self.slots if slot.session is not None), None)
        tools = self.shared.catalog.tools(self.key, self.spec)
        return info, None if tools is None else self.offered([tool.raw for tool in tools.values()])

    def checkout(
        self, profile: ClientProfile = OWN_PROFILE, *, uses_state: bool = True, listener: Listener | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """Hold a session for one call. With `share: call` the session ends with the call.

        profile: of the client that it is for; see `suited`. listener: hears from now on what happens in the session.
        """
        if self.spec.share == "call":
            return self._fresh_session(profile)
        slot = self.slot(profile)
        if listener is not None:
            slot.listeners.add(listener)
        return slot.checkout(uses_state=uses_state)

    async def suited(self, profile: ClientProfile) -> ClientProfile:
        """Return the profile with which a client should use this server: a server may know the older era only."""
        if profile.era == "handshake":
            return profile
        fingerprint, eras = self._template_fingerprint, self.shared.eras
        if fingerprint not in eras:
            live = next((slot.session for slot in self.slots if slot.session is not None), None)
            if live is not None and live.info.era == "handshake" and len(eras) < _MOST_ERAS:
                eras[fingerprint] = "modern" if await live.knows_modern_era() else "handshake"
        return profile.in_handshake_era() if eras.get(fingerprint) == "handshake" else profile

    @asynccontextmanager
    async def _fresh_session(self, profile: ClientProfile) -> AsyncIterator[Session]:
        slot = self.new_slot(0, profile)
        self.slots.append(slot)
        try:
            async with slot.checkout() as session:
                yield session
        finally:
            self.slots.remove(slot)
            with anyio.CancelScope(shield=True):
                await slot.aclose()

    async def aclose(self) -> None:
        """End every session, for ever."""
        self._closed = True
        async with anyio.create_task_group() as closing:
            for slot in self.slots:
                closing.start_soon(slot.aclose)
        self.slots.clear()  # they refer to this pool: without the cycle their memory is free at once

    async def tools(self, profile: ClientProfile = OWN_PROFILE, *, fresh: bool = False) -> list[ToolInfo]:
        """Return the offered tools, from the catalog or from the server.

        profile: of the client that a session is opened for, if there is none. fresh: ask the server itself, and start
        it if need be. Otherwise the catalog may answer from an earlier run.
        Raises CallTimeout when a running server does not list its tools within its start timeout.
        """
        tools = None if fresh else self.shared.catalog.get(self.key, self.spec)
        if tools is None:
            async with self.checkout(await self.suited(profile), uses_state=False) as session:
                tools = await self._ask(session)
        return offered_tools(self.spec, tools)

    @property
    def tools_with_headers(self) -> Mapping[str, ToolInfo] | None:
        """The tools of which clients repeat parameters in headers; None if the tools are not known."""
        known = self.shared.catalog.tools(self.key, self.spec)
        if known is not self._looked_at:
            self._looked_at = known
            self._with_headers = {name: tool for name, tool in (known or {}).items() if header_map(tool.raw)}
        return None if known is None else self._with_headers

    def offered(self, wire: list[Json]) -> list[Json]:
        """Return the tools of a list that are offered, with the config's declarations."""
        return offered_on_wire(self.spec, wire)

    async def _ask(self, session: Session) -> list[ToolInfo]:
        """Ask the server for its tools. Notify listeners if the catalog listed something else."""
        catalog, changes = self.shared.catalog, self.changes
        wire = await self._listed(session)
        if changes != self.changes:  # while it listed: these may be the old tools, which must not be kept
            return [ToolInfo.from_wire(self.spec.name, tool) for tool in wire]
        is_news = catalog.is_outdated_by(self.key, self.spec, wire)
        tools = catalog.put(self.key, self.spec, wire)
        if is_news:
            self._tell_change()
            self.tell_clients("tools")
        return tools

    async def _listed(self, session: Session) -> list[Json]:
        seconds = self.spec.start_timeout_s
        with anyio.move_on_after(seconds):
            return await session.list_tools()
        raise CallTimeout(
            f"server {self.spec.name!r} is up but did not list its tools within {seconds:g} s (start_timeout_s)",
            timeout=seconds,
            server=self.spec.name,
            tool="tools/list",
        )


def offered_tools(spec: ServerSpec, tools: Iterable[ToolInfo]) -> list[ToolInfo]:
    """Return the tools that the config offers, with what it declares of them."""
    return [with_declarations(spec, tool) for tool in tools if is_offered(spec, tool.name)]


def offered_on_wire(spec: ServerSpec, wire: Iterable[Json]) -> list[Json]:
    """Return the tools of a server's list that the config offers, with what it declares of them."""
    tools = [ToolInfo.from_wire(spec.name, one) for one in wire if is_offered(spec, str(one.get("name")))]
    return [with_declarations(spec, tool).raw for tool in tools]
