"""Have a model behind an OpenAI-compatible endpoint extract what is asked for from a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio
from pydantic import Field, field_validator

from toolhub.config.section import Count, Seconds, Text
from toolhub_servers.scrape.settings import PageSettings, service_address
from toolhub_servers.serving.options import MissingOption
from toolhub_servers.serving.overload import overload_in, report_overload
from toolhub_servers.web.client import Web
from toolhub_servers.web.errors import BadStatus, WebError
from toolhub_servers.web.response import Response

MAX_TOKENS = 8192
# The tries for one page: with shorter content, without a service tier, or after an answer that repeats itself.
ATTEMPTS = 4
# So many characters are dropped from the end when a model says that the content is too long; then twice, three times.
SHRINK_CHARS = 40_960
TRUNCATED = "[...truncated]"
# For instructions, question and chat template, in tokens.
OVERHEAD_TOKENS = 2048
TAIL_CHARS = 50
TAIL_REPEATS = 5

NO_CONTENT = "Content cannot be empty"
NO_URL = "SUMMARY_LLM_BASE_URL environment variable is not set"
NO_MODEL = "SUMMARY_LLM_MODEL_NAME environment variable is not set"
_PREFIX = "Jina Scrape and Extract Info: "
_OVERFLOWS = (
    "Requested token count exceeds the model's maximum context length",
    "longer than the model's context length",
    "maximum context length",
    "context_length_exceeded",
)
_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)

_PROMPT = """\
Below is the content of a web page or file. Find in it what is asked for, and report that.

What is asked for:
{info}

How to report:
- Use only what the content says. Where it does not say something that is asked for, state that it is missing.
- Give names, numbers, dates and quotations exactly as they are written, with the context that they need.
- Include everything that bears on the question, also what contradicts it; leave out the rest.
- If there are several matches, list them all. Do not comment on these instructions.

The content:
{content}
"""


class SummarySettings(PageSettings):
    """Options of the server: those of reading pages, and the model."""

    VARIABLES: ClassVar[Mapping[str, str]] = {
        **PageSettings.VARIABLES,
        "summary_llm_base_url": "SUMMARY_LLM_BASE_URL",
        "summary_llm_model_name": "SUMMARY_LLM_MODEL_NAME",
        "summary_llm_api_key": "SUMMARY_LLM_API_KEY",
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("summary_llm_base_url", "summary_llm_model_name")

    summary_llm_base_url: Text = ""
    """The whole URL of the endpoint, such as http://127.0.0.1:8000/v1/chat/completions."""
    summary_llm_model_name: Text = ""
    summary_llm_api_key: Text = Field(default="", repr=False)
    summary_context_tokens: Count = 112_640
    """The model's context, with question and answer. Content is cut to the rest (about 409,600 characters)."""
    summary_concurrency: Count = 32
    """Requests to the model at a time, over all tasks."""
    summary_s: Seconds = 300
    """For the answer to one page, with all tries."""

    @field_validator("summary_llm_base_url")
    @classmethod
    def _is_endpoint(cls, url: str) -> str:
        if url:
            service_address(url)
        return url

    @property
    def pages(self) -> PageSettings:
        """The settings for reading alone. Servers with equal ones share the pages."""
        return PageSettings.model_validate({name: getattr(self, name) for name in PageSettings.model_fields})

    def missing_options(self, tool: str = "", prefix: str = "") -> list[MissingOption]:
        """The options without which the model cannot be asked, and the keys that readers lack."""
        loss = "there is no model to ask, and every call fails"
        return [
            *(MissingOption(name, self.VARIABLES[name], loss, is_needed=True) for name in self.unset),
            *super().missing_options(tool, prefix),
        ]

    @property
    def missing(self) -> str:
        """The tool's sentence about an option that is not set; empty if the model can be asked."""
        if not self.summary_llm_base_url:
            return NO_URL
        return "" if self.summary_llm_model_name else NO_MODEL


@dataclass(frozen=True, slots=True)
class Extract:
    """What a model found. `error` is empty if it answered."""

    text: str = ""
    error: str = ""
    tokens: int = 0


class Extractor:
    """Asks the model. Give it a client of its own, because all its requests go to one host."""

    def __init__(self, web: Web, settings: SummarySettings) -> None:
        self._web = web
        self._settings = settings

    async def extract(self, content: str, info: str) -> Extract:
        """Return what the content says about `info`, or the reason why not. Never raises for what the endpoint does."""
        if not content.strip():
            return Extract(error=NO_CONTENT)
        try:
            with anyio.fail_after(self._settings.summary_s):
                fitting = self.fitting(content)
                return await self._attempts(fitting if fitting == content else fitting + TRUNCATED, info)
        except TimeoutError:
            return _failed(f"no answer within {self._settings.summary_s:g} seconds")

    def fitting(self, content: str) -> str:
        """Return the beginning of the content that fits into the model's context."""
        return first_tokens(content, self._settings.summary_context_tokens - MAX_TOKENS - OVERHEAD_TOKENS)

    async def _attempts(self, content: str, info: str) -> Extract:
        payload = parameters(self._settings.summary_llm_model_name)
        extract = Extract()
        for attempt in range(1, ATTEMPTS + 1):
            payload["messages"] = [{"role": "user", "content": _PROMPT.format(info=info, content=content)}]
            try:
                reply = await self._post(payload)
            except BadStatus as exc:
                extract = _failed(_told(exc))
                if is_overflow(exc.text):
                    content = shrunk(content, attempt)
                elif payload.pop("service_tier", None) is None:
                    report_overload(overload_in(exc))
                    return extract
                continue
            except WebError as exc:  # the client has already tried again
                return _failed(str(exc))
            extract = read_answer(reply)
            if is_overflow(extract.error):
                content = shrunk(content, attempt)
            elif not is_circular(extract.text):
                return extract
        return extract

    async def _post(self, payload: Mapping[str, Any]) -> Response:
        key = self._settings.summary_llm_api_key
        # The request changes nothing, so it may be sent again.
        return await self._web.request(
            "POST",
            self._settings.summary_llm_base_url,
            json=payload,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=self._settings.summary_s,
            is_safe=True,
        )


def parameters(model: str) -> dict[str, Any]:
    """Return the parameters of a request, without its messages. OpenAI's models need others than the rest."""
    if "gpt" not in model:
        return {"model": model, "max_tokens": MAX_TOKENS, "temperature": 1.0}
    chosen: dict[str, Any] = {"model": model, "max_completion_tokens": MAX_TOKENS}
    if "gpt-5" in model or "gpt5" in model:
        chosen |= {"service_tier": "flex", "reasoning_effort": "minimal"}
    return chosen


def read_answer(reply: Response) -> Extract:
    """Return the text of an answer without the model's thinking, or what is wrong with the answer."""
    try:
        answer = reply.json()
    except ValueError as exc:
        return Extract(error=f"{_PREFIX}Failed to parse LLM API response: {exc}")
    if not isinstance(answer, dict):
        return _invalid(answer)
    if problem := answer.get("error"):
        return Extract(error=f"{_PREFIX}LLM API error: {problem}")
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return _invalid(answer)
    if not isinstance(text, str) or not (told := without_thinking(text)):
        return _invalid(answer)
    usage = answer.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else 0
    return Extract(told, tokens=tokens if isinstance(tokens, int) else 0)


def without_thinking(text: str) -> str:
    """Return the answer without thinking. Some templates open `<think>` in the prompt, so only its end may be there."""
    if "</think>" in text and "<think>" not in text.partition("</think>")[0]:
        text = text.partition("</think>")[2]
    return _THINKING.sub("", text).strip()


def is_overflow(text: str) -> bool:
    """Whether an endpoint says that the content is too long for its model."""
    return any(words in text for words in _OVERFLOWS)


def is_circular(text: str) -> bool:
    """Whether the answer repeats its end again and again."""
    return len(text) >= TAIL_CHARS and text.count(text[-TAIL_CHARS:]) > TAIL_REPEATS


def shrunk(content: str, attempt: int) -> str:
    dropped = SHRINK_CHARS * attempt
    # If less than that is left, half of it is tried.
    kept = content[:-dropped] if dropped < len(content) else content[: len(content) // 2]
    return kept + TRUNCATED


def first_tokens(text: str, count: int) -> str:
    """Return the beginning of a text with about `count` tokens: 4 ASCII characters or 4/3 other characters each."""
    quarters, end = 4 * max(count, 1), 0
    while end < len(text) and quarters > 0:
        piece = text[end : end + min(4096, max(quarters // 3, 1))]
        ascii_chars = len(piece.encode("ascii", "ignore"))
        quarters -= ascii_chars + 3 * (len(piece) - ascii_chars)
        end += len(piece)
    return text[:end]


def _told(exc: BadStatus) -> str:
    return f"{exc}: {exc.text}" if exc.text and exc.text not in str(exc) else str(exc)


def _failed(reason: str) -> Extract:
    return Extract(error=f"{_PREFIX}Unexpected error during LLM API call: {reason}")


def _invalid(answer: Any) -> Extract:
    return Extract(error=f"{_PREFIX}No valid response from LLM API, response data: {str(answer)[:2000]}")
