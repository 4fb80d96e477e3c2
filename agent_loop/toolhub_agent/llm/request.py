"""A request of the loop, and the JSON it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolhub.config.agent import Sampling
from toolhub_agent.model import Json, Message


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """One turn's question. session: the conversation, the same for all its turns; it decides the endpoint.

    body: more fields of the request (tools, tool_choice, ...); they win over sampling. priority: in the engine's own
    polarity; None: not sent. final: no request of this conversation follows. headers: beside those of the session.
    """

    session: str
    messages: Sequence[Message]
    body: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    priority: int | None = None
    final: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def body_of(request: LlmRequest, model: str | None) -> Json:
    """The streamed request's JSON, fields always in the same order. model: None leaves it out."""
    body: Json = {} if model is None else {"model": model}
    body |= {"messages": list(request.messages), **sampled(request.sampling)}
    if _is_open(request.messages):
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.priority is not None:
        body["priority"] = request.priority
    return {**body, **request.body, "stream": True, "stream_options": {"include_usage": True}}


def sampled(sampling: Sampling) -> Json:
    """Only what differs from leaving it to the server."""
    named = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    return {name: value for name, value in named.items() if value is not None} | sampling.extra_body


def _is_open(messages: Sequence[Message]) -> bool:
    """Whether the model shall go on with its own last message, as MiroFlow asks in that case."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("tool_calls")
