"""Requests to one model server: session headers, JSON requests, streamed chunks, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream, Omit

from toolhub_agent.llm.errors import AttemptFailed, error_message, failure_from_status, parse_retry_after, sanitize
from toolhub_agent.types import Json

# --- Session headers --------------------------------------------------------------------------------------------------
# The headers that tell routers and engines which conversation a request belongs to. Unknown headers harm nobody.

MAX_HEADER_CHARS = 200
# MiroFlow's; vLLM, its routers and llm-d; SGLang's gateway; Dynamo.
SESSION_HEADERS = ("x-upstream-session-id", "X-Session-ID", "X-SMG-Routing-Key", "X-Dynamo-Session-ID")
# llm-d's session affinity hands this out with an answer and wants it back with the next request.
SESSION_TOKEN_HEADER = "x-session-token"  # noqa: S105
MAX_TOKEN_CHARS = 4096


def session_headers(session: str, *, final: bool = False) -> dict[str, str]:
    """final: no request of this conversation follows (Dynamo frees what it kept for it)."""
    value = header_value(session)
    headers = dict.fromkeys(SESSION_HEADERS, value)
    return {**headers, "X-Dynamo-Session-Final": "true"} if final else headers


def header_value(text: str) -> str:
    """A name as a header may carry it: no control or foreign characters, not too long, still one per name."""
    safe = quote(text, safe="!#$&'()*+,/:;=?@[]-._~|", errors="backslashreplace")
    if len(safe) <= MAX_HEADER_CHARS:
        return safe
    return f"{safe[: MAX_HEADER_CHARS - 33]}-{blake2b(safe.encode(), digest_size=16).hexdigest()}"


def engine_root(endpoint: str) -> str:
    """An engine's address without the API's `/v1`: `/metrics`, `/version`, `/close_session` are there."""
    return endpoint.rstrip("/").removesuffix("/v1")


# --- Requests ---------------------------------------------------------------------------------------------------------
# The only module that knows the `openai` SDK: requests out, chunks and failures in.
#
# Retries, deadlines and affinity are this package's own; the SDK's retries are off and its timeouts unused.

PATH = "/chat/completions"
# The SDK wants one; servers without a key are sent none.
NO_KEY = "none"


class SdkChunks:
    """A stream's chunks as plain objects."""

    def __init__(self, stream: AsyncStream[object], secrets: tuple[str, ...]) -> None:
        self._stream = stream
        self._secrets = secrets

    @property
    def headers(self) -> Mapping[str, str]:
        return self._stream.response.headers

    async def next(self) -> Any:
        """Return the next chunk, None at the end. Raises AttemptFailed."""
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            return None
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, ValueError) as exc:
            raise failure_of(exc, self._secrets) from exc

    async def aclose(self) -> None:
        await self._stream.close()


class SdkSender:
    """One endpoint's SDK client over its pool."""

    def __init__(self, endpoint: str, pool: httpx2.AsyncClient, *, key: str | None, secrets: tuple[str, ...]) -> None:
        """pool: has the configured headers already, the key's among them."""
        # What the environment holds for OpenAI is none of these servers' business.
        self._own: dict[str, Any] = {
            "OpenAI-Organization": Omit(),
            "OpenAI-Project": Omit(),
            "Authorization": pool.headers.get("authorization", Omit()),
        }
        self._secrets = secrets
        self._sdk = AsyncOpenAI(
            base_url=endpoint,
            api_key=key or NO_KEY,
            http_client=pool,
            max_retries=0,
            timeout=pool.timeout,
        )

    async def open(self, body: Json, headers: Mapping[str, str]) -> SdkChunks:
        """Send a streamed request; return once its head is here. Raises AttemptFailed."""
        try:
            stream = await self._sdk.post(
                PATH,
                cast_to=object,
                body=body,
                options={"headers": {**self._own, **headers}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except (openai.OpenAIError, httpx2.HTTPError) as exc:
            raise failure_of(exc, self._secrets) from exc
        return SdkChunks(stream, self._secrets)

    async def ask(self, body: Json, headers: Mapping[str, str]) -> Any:
        """Send a request that is not streamed; return its JSON. Raises AttemptFailed."""
        try:
            return await self._sdk.post(PATH, cast_to=object, body=body, options={"headers": {**self._own, **headers}})
        except (openai.OpenAIError, httpx2.HTTPError, ValueError) as exc:
            raise failure_of(exc, self._secrets) from exc

    async def models(self) -> list[str]:
        """The names of the models that are served. Raises AttemptFailed."""
        try:
            answer = await self._sdk.get("/models", cast_to=object, options={"headers": self._own})
        except (openai.OpenAIError, httpx2.HTTPError, ValueError) as exc:
            raise failure_of(exc, self._secrets) from exc
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list):
            raise AttemptFailed("/models does not list models", blames=False)
        return [model["id"] for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]


def failure_of(exc: Exception, secrets: tuple[str, ...]) -> AttemptFailed:
    """What an exception of the SDK, or of what is below it, means."""
    if isinstance(exc, openai.APIStatusError):
        text, code = error_message(exc.body if exc.body is not None else exc.response.text)
        after = parse_retry_after(exc.response.headers.get("retry-after"))
        return failure_from_status(exc.status_code, sanitize(text, secrets), code=code, retry_after=after)
    if isinstance(exc, openai.APIConnectionError) or not isinstance(exc, openai.APIError):
        return _broken(exc, secrets)
    text, code = error_message(exc.body)
    status = _status(code)
    return failure_from_status(status, sanitize(text or exc.message, secrets), code=code)


def _broken(exc: Exception, secrets: tuple[str, ...]) -> AttemptFailed:
    if isinstance(exc, ValueError):
        return AttemptFailed("the stream is not JSON", blames=False)
    below = exc.__cause__ if isinstance(exc, openai.APIConnectionError) and exc.__cause__ else exc
    return AttemptFailed(f"{type(below).__name__}: {sanitize(str(below), secrets)}".rstrip(": "))


def _status(code: str) -> int | None:
    """An error inside a stream has its status in its code, if anywhere."""
    first = code.split(" ")[0]
    return int(first) if first.isdigit() and 400 <= int(first[:4]) < 600 else None
