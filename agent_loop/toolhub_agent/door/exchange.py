"""From a request to its answer: an endpoint, a slot there, and another endpoint where the first gives no answer."""

from __future__ import annotations

from time import perf_counter

import anyio

from toolhub.config.llm import LlmSettings
from toolhub_agent.door.passage import BrokenError, Passage, Sent, Turn
from toolhub_agent.door.reply import Refusal, Reply
from toolhub_agent.door.request import with_fields
from toolhub_agent.door.statistics import Counts
from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.kv_hints.signals import EngineFields, HintSink
from toolhub_agent.llm.concurrency import Slot
from toolhub_agent.llm.endpoint_pool import EndpointPool

# More requests than this waiting for one endpoint would wait for hours.
MOST_WAITING = 2048


class Exchange:
    """What all requests share. Up to an answer's head another endpoint may be tried."""

    def __init__(self, fleet: EndpointPool, settings: LlmSettings, hints: HintSink, counts: Counts) -> None:
        self.fleet = fleet
        self.hints = hints
        self._settings = settings
        self._counts = counts
        key = {"authorization"} if settings.api_key else set()
        configured = frozenset({name.lower() for name in settings.headers} | key)
        self._passages = {url: Passage(url, fleet, counts, configured) for url in fleet.endpoints.urls}
        self._plain: set[str] = set()
        """Endpoints that refused a field of the door's own."""

    def __repr__(self) -> str:
        return f"<Exchange over {self.fleet!r}>"

    async def aclose(self) -> None:
        """Close the connections to the endpoints."""
        for passage in self._passages.values():
            await passage.aclose()

    async def run(self, turn: Turn, reply: Reply) -> None:
        """Answer it. Raises Refusal where no model server does."""
        deadline = anyio.current_time() + self._settings.total_timeout_s
        tried: set[str] = set()
        while True:
            url = self.fleet.endpoints.choose(turn.affinity)
            began = perf_counter()
            slot = await self._slot(turn, url, deadline)
            try:
                await self._ask(turn, url, reply, deadline, waited=perf_counter() - began)
                return
            except BrokenError as exc:
                self.fleet.endpoints.failed(url)
                if reply.status:
                    await reply.break_off(502, f"the model server {exc}")
                    return
                # A connection that died of old age is nobody's fault: once more is always allowed.
                if url in tried and self.fleet.endpoints.of(turn.affinity) in tried:
                    raise Refusal.for_now(502, f"no model server answers; the last one {exc}") from None
                tried.add(url)
            finally:
                if slot is not None:
                    slot.release()

    async def _slot(self, turn: Turn, url: str, deadline: float) -> Slot | None:
        """As many requests are at an engine as it runs; all others wait here, first come, first served."""
        if turn.asked.path == "/models":
            return None
        if self.fleet.slots.statistics(url).waiting >= MOST_WAITING:
            raise Refusal.for_now(429, f"{MOST_WAITING} requests already wait for the model server")
        try:
            return await self.fleet.slots.acquire(url, deadline=deadline)
        except LlmUnavailable:
            raise Refusal.for_now(503, "the model server had no room for this request in time") from None

    async def _ask(self, turn: Turn, url: str, reply: Reply, deadline: float, *, waited: float) -> None:
        self._counts.waited_s += waited
        began = anyio.current_time()
        with anyio.move_on_at(min(deadline, began + self._settings.attempt_timeout_s)) as scope:
            await self._ask_in_time(turn, url, reply, waited)
        if scope.cancelled_caught:
            message = f"the model server took longer than {anyio.current_time() - began:.0f} s"
            if not reply.status:
                raise Refusal(504, message)
            await reply.break_off(504, message)

    async def _ask_in_time(self, turn: Turn, url: str, reply: Reply, waited: float) -> None:
        passage, plain = self._passages[url], Sent(turn.asked.raw, waited=waited)
        sent = plain if url in self._plain else self._with_wishes(turn, url, waited)
        await passage.run(turn, sent, reply, may_be_refused=sent.content is not plain.content)
        if not reply.status:
            # A client shall never see an error about what it did not write.
            status = await passage.run(turn, plain, reply, may_be_refused=False)
            if status < 400:
                self._plain.add(url)

    def _with_wishes(self, turn: Turn, url: str, waited: float) -> Sent:
        """The request with what the hints and the door's own accounting want of the engine."""
        asked, conversation = turn.asked, turn.conversation
        fields = EngineFields() if conversation is None else self.hints.turn_fields(conversation.name, url)
        content = with_fields(asked, fields.body, with_usage=True)
        return Sent(content, fields, is_stripped=asked.is_stream and not asked.wants_usage, waited=waited)
