"""The loop's client of the model servers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from toolhub.config.llm import LlmSettings
from toolhub.errors import MissingExtra
from toolhub_agent.llm.attempt import Attempt, Chunks, Sender
from toolhub_agent.llm.failures import AttemptFailed, Verdict
from toolhub_agent.llm.fleet import EndpointStatistics, Fleet, open_fleet
from toolhub_agent.llm.headers import LONGEST_TOKEN, SESSION_TOKEN, session_headers
from toolhub_agent.llm.request import LlmRequest, body_of
from toolhub_agent.llm.single_flight import SingleFlight
from toolhub_agent.llm.stream import LlmStream
from toolhub_agent.llm.warm import Warmer
from toolhub_agent.model import Completion, Json, Message, Usage

_log = logging.getLogger(__name__)
# Conversations whose router token is remembered.
MOST_TOKENS = 10_000

OnTurn = Callable[[LlmRequest, Completion], None]


@dataclass(frozen=True, slots=True)
class LlmStatistics:
    """Sums over finished answers; `endpoints` is as of now. cached_tokens: of those servers that tell."""

    answers: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    endpoints: Mapping[str, EndpointStatistics] | None = None


class LlmClient:
    """Asks the model servers of one configuration. See `open_llm`."""

    def __init__(self, settings: LlmSettings, fleet: Fleet, senders: Mapping[str, Sender]) -> None:
        self.fleet = fleet
        self.on_turn: list[OnTurn] = []
        """Told of every finished answer; what they raise is logged, not raised."""
        self._settings = settings
        self._senders = senders
        self._model = settings.model
        self._asking: SingleFlight[None, str] = SingleFlight()
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._sums = LlmStatistics()
        self._warmer = Warmer(fleet, self._ask, timeout=settings.attempt_timeout_s)

    def __repr__(self) -> str:
        return f"<LlmClient {self._model or 'any model'}, {self._sums.answers} answers, {self.fleet!r}>"

    @asynccontextmanager
    async def stream(self, request: LlmRequest) -> AsyncIterator[LlmStream]:
        """One answer, piece by piece; leaving the block stops it. See `LlmStream` for what is raised."""
        stream = LlmStream(
            self.fleet,
            self._settings,
            session=request.session,
            send=lambda endpoint: self._send(endpoint, request),
            done=lambda completion, attempt: self._done(request, completion, attempt),
        )
        try:
            yield stream
        finally:
            await stream.aclose()
            if request.final:
                self.forget(request.session)

    async def complete(self, request: LlmRequest) -> Completion:
        """One answer at once. Raises as `LlmStream` does."""
        async with self.stream(request) as stream:
            async for _ in stream:
                pass
        return stream.completion

    async def warm_prefix(self, messages: Sequence[Message], body: Mapping[str, Any]) -> dict[str, Usage | None]:
        """Have every endpoint compute a prefix that many conversations will begin with.

        body: the fields that shape the prompt (tools, chat_template_kwargs, ...), as the conversations will send them.
        Many may call it at once, it is sent once per endpoint, and all go on together. Returns what each endpoint
        counted, None where it did not work; raises nothing for that.
        """
        return await self._warmer.warm(messages, body)

    def endpoint_of(self, session: str) -> str:
        """Where the conversation's next request would go now."""
        return self.fleet.endpoints.of(session)

    def raw(self, endpoint: str) -> httpx2.AsyncClient:
        """The endpoint's pool for requests beside the API; see `Fleet.client`."""
        return self.fleet.client(endpoint)

    @property
    def known_model(self) -> str | None:
        """The model's name; None until the first request, if the configuration does not say."""
        return self._model

    def forget(self, session: str) -> None:
        """No request of this conversation follows."""
        self.fleet.endpoints.forget(session)
        self._tokens.pop(session, None)

    def statistics(self) -> LlmStatistics:
        return replace(self._sums, endpoints=self.fleet.statistics())

    async def model(self, endpoint: str) -> str:
        """The configured model, else the only one that the endpoint serves. Raises AttemptFailed."""
        if self._model is None:
            self._model = await self._asking.run(None, lambda: self._only_model(endpoint))
        return self._model

    async def _send(self, endpoint: str, request: LlmRequest) -> Chunks:
        body = body_of(request, await self.model(endpoint))
        headers = {**session_headers(request.session, final=request.final), **request.headers}
        if (token := self._tokens.get(request.session)) is not None:
            headers[SESSION_TOKEN] = token
        return await self._senders[endpoint].open(body, headers)

    async def _ask(self, endpoint: str, body: Json, headers: Mapping[str, str]) -> Any:
        return await self._senders[endpoint].ask({"model": await self.model(endpoint), **body}, headers)

    async def _only_model(self, endpoint: str) -> str:
        names = await self._senders[endpoint].models()
        if len(names) == 1:
            return names[0]
        listed = ", ".join(repr(name) for name in names[:10]) or "none"
        raise AttemptFailed(f"set llm.model: the endpoint serves {listed}", verdict=Verdict.REFUSED, blames=False)

    def _done(self, request: LlmRequest, completion: Completion, attempt: Attempt) -> None:
        self._remember_token(request.session, attempt.headers.get(SESSION_TOKEN))
        usage, sums = completion.usage, self._sums
        self._sums = LlmStatistics(
            answers=sums.answers + 1,
            attempts=sums.attempts + completion.attempts,
            prompt_tokens=sums.prompt_tokens + usage.prompt_tokens,
            cached_tokens=sums.cached_tokens + (usage.cached_tokens or 0),
            completion_tokens=sums.completion_tokens + usage.completion_tokens,
        )
        for told in self.on_turn:
            try:
                told(request, completion)
            except Exception:
                _log.exception("an observer of turns failed")

    def _remember_token(self, session: str, token: str | None) -> None:
        if token is None or len(token) > LONGEST_TOKEN:
            return
        self._tokens[session] = token
        self._tokens.move_to_end(session)
        while len(self._tokens) > MOST_TOKENS:
            self._tokens.popitem(last=False)


@asynccontextmanager
async def open_llm(settings: LlmSettings) -> AsyncIterator[LlmClient]:
    """A client of the configured model servers; nothing is sent until the first request.

    Raises MissingExtra if the `openai` SDK is not installed.
    """
    try:
        from toolhub_agent.llm.sdk import SdkSender  # a second of imports that only a running loop needs
    except ModuleNotFoundError as exc:
        if exc.name != "openai":
            raise
        raise MissingExtra("agent", "the agent loop") from exc
    key = settings.api_key.get_secret_value() if settings.api_key else None
    async with open_fleet(settings) as fleet:
        senders = {
            url: SdkSender(url, fleet.client(url), key=key, secrets=fleet.secrets) for url in fleet.endpoints.urls
        }
        yield LlmClient(settings, fleet, senders)
