"""A client for models behind an HTTP API: OpenAI's or a compatible one, or Anthropic's.

A request changes nothing, so the hub's client repeats it after a broken connection, after 429 (at the time that
Retry-After gives) and after 5xx. One deadline holds for all tries. The operator gives the address, so it may be in a
private network.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from anyio import to_thread
from pydantic import Field, model_validator

from toolhub.config.section import Count, Seconds, Text
from toolhub_servers.models.media import Media
from toolhub_servers.models.media_types import suffix_of
from toolhub_servers.serving.options import MissingOption, ServiceSettings
from toolhub_servers.serving.overload import overload_in, report_overload
from toolhub_servers.serving.server import ServerContext
from toolhub_servers.web.client import open_web
from toolhub_servers.web.errors import BadStatus, Forbidden, WebError
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

# The pauses are 0.25 to 8 s, about 15 s together, unless the service gives a Retry-After.
RETRIES = 6
# An answer has some kilobytes. The limit keeps a wrong address from filling the memory.
MAX_BYTES = 8 << 20
# How much an error shows of an answer that cannot be used, or of the service's own error text.
SHOWN = 300
# Encoded at a time, so that other threads can run in between. A multiple of 3, so that the pieces join to one base64
# text.
_STEP_BYTES = 3 << 18
_LOSS = "there is no model to ask, and every call fails"
_END_OF_THINKING = "</think>"


class ModelSettings(ServiceSettings):
    """One model. timeout_s: for its answer, with all tries. concurrency: requests at a time, over all tasks."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("base_url", "model")

    api_key: Text = Field(default="", repr=False)
    base_url: Text = ""
    model: Text = ""
    # Together with the longest download it is less than the 300 s that a hub gives a call (`call_timeout_s`).
    timeout_s: Seconds = 200
    concurrency: Count = 64

    @model_validator(mode="after")
    def _is_address(self) -> Self:
        if self.base_url:
            try:
                self.client()
            except (Forbidden, ValueError) as exc:
                named = f"base_url ({self.VARIABLES.get('base_url', 'no variable')})"
                raise ValueError(f"{named} is not the http(s) URL of a service: {exc}") from exc
        return self

    @property
    def missing(self) -> str:
        """A sentence about a required option that is not set; empty if a request can be made."""
        for lack in self.missing_options():
            return f"{lack.variable} is not set (option '{lack.option}' of this server)"
        return ""

    def missing_options(self) -> list[MissingOption]:
        """The required options that are not set."""
        return [
            MissingOption(option, self.VARIABLES.get(option, option), _LOSS, is_needed=True) for option in self.unset
        ]

    def client(self) -> WebSettings:
        """Settings of the web client for this service alone. Raises Forbidden, ValueError."""
        return WebSettings(
            connections=self.concurrency,
            per_host=self.concurrency,
            total_s=self.timeout_s,
            max_bytes=MAX_BYTES,
            retries=RETRIES,
            allow_private=[authority_of(self.base_url)],
        )


class ModelError(Exception):
    """There is no answer. The text is for the model that called the tool, and never contains the key."""


class InvalidResponse(ModelError):
    """The service answered, but the answer has an unknown shape."""


class ModelApi:
    """One service. headers: makes the headers that carry the key."""

    def __init__(
        self,
        server_context: ServerContext,
        settings: ModelSettings,
        headers: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        self._context = server_context
        self._settings = settings
        key = settings.api_key
        self._headers = dict((headers or _bearer)(key)) if key else {}

    def __repr__(self) -> str:
        return f"<ModelApi {self._settings.model} at {self._settings.base_url}>"

    async def post(self, path: str, content: bytes, content_type: str = "application/json") -> dict[str, Any]:
        """Return the JSON object that the service answers. Raises ModelError.

        path: appended to the base URL; empty for servers whose base URL is the whole address.
        """
        settings = self._settings
        if settings.missing:
            raise ModelError(settings.missing)
        url = settings.base_url.rstrip("/") + path if path else settings.base_url
        try:
            web = await open_web(self._context.resources, "models", settings.client())
            headers = {**self._headers, "Content-Type": content_type}
            reply = await web.request("POST", url, headers=headers, content=content, is_safe=True)
        except BadStatus as exc:
            report_overload(overload_in(exc))
            raise ModelError(self._public(f"{exc}: {_words(exc.text)}".removesuffix(": "))) from exc
        except WebError as exc:
            raise ModelError(self._public(str(exc))) from exc
        try:
            answer = reply.json()
        except ValueError as exc:
            raise InvalidResponse(self._public(f"it is not JSON ({_start(reply.body)!r})")) from exc
        if not isinstance(answer, dict):
            raise InvalidResponse(self._public(f"it is not a JSON object ({_start(reply.body)!r})"))
        if answer.get("error"):  # some gateways send errors with status 200
            raise ModelError(self._public(_words(json.dumps(answer))))
        return answer

    async def chat(
        self, path: str, messages: Callable[[str], list[Any]], data: bytes = b"", **parameters: Any
    ) -> dict[str, Any]:
        """Return the first choice's message; an empty one if there is no choice. Raises ModelError.

        messages: gets a mark that stands for `data` in base64, and returns messages that contain the mark.
        """

        def payload(mark: str) -> dict[str, Any]:
            return {"model": self._settings.model, "messages": messages(mark), **parameters}

        answer = await self.post(path, await to_thread.run_sync(_json_with, payload, data))
        try:
            message = answer["choices"][0]["message"] if answer["choices"] else {}
        except (KeyError, IndexError, TypeError) as exc:
            raise InvalidResponse(f"it has no choices ({_start(json.dumps(answer).encode())!r})") from exc
        if not isinstance(message, dict):
            raise InvalidResponse("its message is not an object")
        return message

    async def transcribe(self, media: Media) -> str:
        """Return the words that are spoken in a recording. Raises ModelError."""
        content, content_type = await to_thread.run_sync(_form, {"model": self._settings.model}, media)
        text = (await self.post("/audio/transcriptions", content, content_type)).get("text")
        if not isinstance(text, str):
            raise InvalidResponse("the answer has no text")
        return text

    def _public(self, text: str) -> str:
        """Return the text without the key, which some services repeat in errors."""
        key = self._settings.api_key
        return text.replace(key, "***") if key else text


def _bearer(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}


def part_of_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def part_of_image(url: str) -> dict[str, Any]:
    """A part for an image or a video; services that accept videos accept them in this form."""
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(message: Mapping[str, Any], field: str = "content") -> str:
    """Return the text of a message, which some services send in parts; empty if there is none."""
    content = message.get(field)
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def without_thinking(text: str) -> str:
    """Return an answer without the thinking that some models put before it."""
    _, end, rest = text.partition(_END_OF_THINKING)
    return rest.strip() if end else text


def _json_with(payload: Callable[[str], Any], data: bytes) -> bytes:
    """Return `payload` as JSON, with `data` in base64 in place of the mark. Blocks.

    For 50 MB, `json.dumps` of everything would stop all other threads for a quarter of a second.
    """
    mark = secrets.token_hex(16)
    start, _, end = json.dumps(payload(mark), ensure_ascii=True).encode().partition(mark.encode())
    return b"".join([start, *_base64(data), end])


def _base64(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _STEP_BYTES):
        yield base64.b64encode(data[at : at + _STEP_BYTES])


def _form(fields: Mapping[str, str], media: Media) -> tuple[bytes, str]:
    """Return a multipart/form-data body (RFC 7578) and its content type. The file's name fits its content."""
    boundary = secrets.token_hex(16)
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="audio{suffix_of(media.mime)}"\r\n'
        f"Content-Type: {media.mime}\r\n\r\n"
    )
    content = b"".join([head.encode(), media.data, f"\r\n--{boundary}--\r\n".encode()])
    return content, f"multipart/form-data; boundary={boundary}"


def _words(text: str) -> str:
    """Return a service's own error text: `error.message`, `error`, `message` or `detail` of its JSON, or the body."""
    try:
        answer = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:SHOWN]
    if isinstance(answer, dict):
        answer = next((answer[name] for name in ("error", "message", "detail") if answer.get(name)), answer)
    if isinstance(answer, dict):
        answer = answer.get("message") or answer
    return " ".join((answer if isinstance(answer, str) else json.dumps(answer)).split())[:SHOWN]


def _start(body: bytes) -> str:
    return " ".join(body[:SHOWN].decode(errors="replace").split()) or "nothing"
