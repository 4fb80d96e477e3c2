"""The HTTP client of a backend: one pool for the whole hub.

Each try of a request waits for a rate slot of its host, uses a connection of the pool, and follows redirects. One
deadline bounds all tries together, including their waiting.
"""

from __future__ import annotations

import hashlib
import logging
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import anyio
import stamina

from toolhub.overload import parse_retry_after
from toolhub.shared_resources import SharedResources
from toolhub_servers.web.errors import BadStatus, Forbidden, Unreachable, WebError, WebTimeout
from toolhub_servers.web.exchange import Interrupted, RawResponse, exchange
from toolhub_servers.web.guard import GuardedBackend
from toolhub_servers.web.host_limits import HostLimits
from toolhub_servers.web.pool import Pool, open_pool
from toolhub_servers.web.request import OutgoingRequest, make_request, redirected_request
from toolhub_servers.web.response import Response
from toolhub_servers.web.settings import WebSettings

_SAFE = frozenset({"GET", "HEAD"})
_EXCERPT_CHARS = 500

# Its warning for each retry names neither host nor reason. Retries are counted, and errors contain the last reason.
logging.getLogger("stamina").setLevel(logging.ERROR)


class Web:
    """Use `open_web()`. Any number of tasks may use it at once."""

    def __init__(self, settings: WebSettings, pool: Pool) -> None:
        self.settings = settings
        self._pool = pool
        self._hosts = HostLimits(settings.per_host, settings.pause_s)
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Web requests={self._counts['requests']} {self._pool!r}>"

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        timeout: float | None = None,
        max_bytes: int | None = None,
        is_safe: bool | None = None,
        raise_for_status: bool = True,
    ) -> Response:
        """Send a request and return the whole answer, at most `max_bytes` of its body.

        timeout: seconds for everything; default: `total_s` of the settings. is_safe: whether the request may be sent
        again although the host may have acted on it; default: for GET and HEAD. Raises Forbidden, Unreachable,
        WebTimeout, BadStatus.
        """
        call = _Call(
            max_bytes=max_bytes or self.settings.max_bytes,
            is_safe=method.upper() in _SAFE if is_safe is None else is_safe,
        )
        self._counts["requests"] += 1
        self._counts["in_flight"] += 1
        try:
            request = make_request(method, url, headers, json, content)
            response = await self._with_deadline(request, call, self.settings.total_s if timeout is None else timeout)
        except BadStatus:
            self._counts["failures"] += 1
            if raise_for_status or call.response is None:
                raise
            return call.response
        except WebError as exc:
            self._counts["failures"] += 1
            self._counts["refused"] += isinstance(exc, Forbidden)
            raise
        finally:
            self._counts["in_flight"] -= 1
        return response

    async def get(self, url: str, **options: Any) -> Response:
        """`request("GET", ...)`."""
        return await self.request("GET", url, **options)

    def statistics(self) -> WebStatistics:
        carried, opened = self._pool.carried, self._pool.backend.opened
        return WebStatistics(
            **self._counts,
            connections_opened=opened,
            connections_open=len(self._pool.connections),
            reused_share=max(0.0, 1 - opened / carried) if carried else 0.0,
            hosts=len(self._hosts),
        )

    async def _with_deadline(self, request: OutgoingRequest, call: _Call, seconds: float) -> Response:
        with anyio.move_on_after(seconds):
            return await self._with_retries(request, call)
        self._counts["timeouts"] += 1
        last = f" (tries: {call.tries}; the last that ended: {call.failure})" if call.failure else ""
        raise WebTimeout(f"{request.host} did not answer completely within {seconds:g} s{last}")

    async def _with_retries(self, request: OutgoingRequest, call: _Call) -> Response:
        tries = stamina.retry_context(
            on=call.should_retry,
            attempts=self.settings.retries + 1,
            timeout=None,  # the deadline is on the event loop's clock
            wait_initial=INITIAL_S,
            wait_max=LONGEST_S,
            wait_jitter=JITTER_S,
        )
        async for attempt in tries:
            with attempt:
                call.tries += 1
                self._counts["retries"] += call.tries > 1
                return await self._try(request, call)
        raise AssertionError("the last try returns or raises")

    async def _try(self, request: OutgoingRequest, call: _Call) -> Response:
        call.response = None
        for _ in range(self.settings.redirects + 1):
            answer = await self._exchange(request, call)
            following = redirected_request(request, answer.status, answer.headers)
            if following is None:
                return _checked_response(request, answer, call)
            self._counts["redirects"] += 1
            request = following
        limit = self.settings.redirects
        raise Unreachable(f"more than {limit} redirects, the last to {request.host}", sent=True, is_lasting=True)

    async def _exchange(self, request: OutgoingRequest, call: _Call) -> RawResponse:
        async with self._hosts.rate_slot(request.host):
            answer = await self._exchange_uninterrupted(request, call)
            if answer.status in (429, 503) and (cooldown_s := _retry_after(answer)):
                self._hosts.cool_down(request.host, cooldown_s, answer.status)
        self._counts["received_bytes"] += answer.body.received
        self._counts["cut"] += answer.body.is_cut
        return answer

    async def _exchange_uninterrupted(self, request: OutgoingRequest, call: _Call) -> RawResponse:
        """Send the request. If another request closed its connection, send it again; that does not count as a try."""
        while True:
            self._counts["exchanges"] += 1
            try:
                return await exchange(self._pool, request, connect_s=self.settings.connect_s, max_bytes=call.max_bytes)
            except Interrupted:
                if not call.is_safe:
                    raise


class _Call:
    """The state of one call of `request`.

    response: the answer of the last try, if there was one. failure: why the last try failed.
    """

    def __init__(self, *, max_bytes: int, is_safe: bool) -> None:
        self.max_bytes = max_bytes
        self.is_safe = is_safe
        self.tries = 0
        self.response: Response | None = None
        self.failure: Exception | None = None

    def should_retry(self, exc: Exception) -> bool | float:
        """Tell stamina whether to try again after this exception, or how many seconds to wait first."""
        if not isinstance(exc, WebError):
            return False
        self.failure = exc
        left = anyio.current_effective_deadline() - anyio.current_time()
        return next_try(exc, is_safe=self.is_safe, left=left)


def _checked_response(request: OutgoingRequest, answer: RawResponse, call: _Call) -> Response:
    response = Response(answer.status, str(request.url), answer.fields(), answer.body.data, answer.body.is_cut)
    if answer.status < 400:
        return response
    call.response = response
    text = response.body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace")[:_EXCERPT_CHARS]
    tries = f" (try {call.tries})" if call.tries > 1 else ""
    raise BadStatus(
        f"{request.host} answered {answer.status} {_phrase(answer.status)}".rstrip() + tries,
        status=answer.status,
        text=text,
        retry_after=_retry_after(answer),
    )


def _retry_after(answer: RawResponse) -> float | None:
    return parse_retry_after(answer.header("retry-after").strip())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


async def open_web(resources: SharedResources, name: str, settings: WebSettings | None = None) -> Web:
    """Return the hub's client for a backend (`serper`, `jina`, `pages`, ...). Open it if it is not open yet."""
    chosen = settings or WebSettings()
    return await resources.get_or_open(_key(name, chosen), lambda: open_private_web(chosen))


def _key(name: str, settings: WebSettings) -> str:
    """The name of the shared client. Settings other than the default add their hash."""
    if settings == WebSettings():
        return f"http {name}"
    return f"http {name} {hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12]}"


@asynccontextmanager
async def open_private_web(
    settings: WebSettings, *, backend: GuardedBackend | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Web]:
    """Open a client that is not shared. backend, context: see `open_pool()`."""
    async with open_pool(settings, backend=backend, context=context) as pool:
        yield Web(settings, pool)


# Backoff in seconds: the first pause, the longest, and the largest random addition, which spreads retries over time.
INITIAL_S = 0.25
LONGEST_S = 8.0
JITTER_S = 0.5


def is_passing(status: int) -> bool:
    """Whether the same request may succeed soon (RFC 9110 section 15, RFC 8470 for 425)."""
    return status in (408, 425, 429) or status >= 500


def next_try(exc: Exception, *, is_safe: bool, left: float) -> bool | float:
    """Return whether to send a request again: seconds to wait, True for the usual backoff, False for never.

    A request that was not sent may always be sent again. A request that was sent may be, if it is safe. left: seconds
    until the deadline.
    """
    if isinstance(exc, Unreachable):
        return not exc.is_lasting and (is_safe or not exc.sent)
    if not isinstance(exc, BadStatus) or not (is_safe and is_passing(exc.status)):
        return False
    if exc.retry_after is None:
        return True
    return exc.retry_after + random.uniform(0, JITTER_S) if exc.retry_after < left else False  # noqa: S311


@dataclass(frozen=True, slots=True)
class WebStatistics:
    """requests: calls of `Web.request`. exchanges: messages sent, with redirects and retries. refused: by the guard.

    reused_share: of the exchanges that had a connection, those that needed no new one. received_bytes: of bodies,
    before they are decoded.
    """

    requests: int = 0
    in_flight: int = 0
    failures: int = 0
    exchanges: int = 0
    redirects: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    cut: int = 0
    received_bytes: int = 0
    connections_opened: int = 0
    connections_open: int = 0
    reused_share: float = 0.0
    hosts: int = 0
