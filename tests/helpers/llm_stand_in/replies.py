"""How the stand-in writes: JSON, server-sent events with their faults, and metrics."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from llm_stand_in.answers import Answer, Fault, Json

if TYPE_CHECKING:
    from llm_stand_in.model_server import Load, Seen


class ConnectionCutError(Exception):
    """Raised inside a handler, so that the connection is closed in the middle of its answer."""


class Reply:
    """One response."""

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send

    async def json(self, content: Any, *, status: int = 200) -> None:
        await self._whole(json.dumps(content).encode(), "application/json", status)

    async def text(self, content: str) -> None:
        await self._whole(content.encode(), "text/plain; version=0.0.4")

    async def whole(self, answer: Answer) -> None:
        """An error, or a body as the script has it."""
        if answer.raw is not None:
            await self._whole(answer.raw.encode(), answer.content_type, answer.status, answer.headers)
            return
        text = answer.error if isinstance(answer.error, str) else json.dumps(answer.error)
        await self._whole(text.encode(), answer.content_type, answer.status, answer.headers)

    async def completion(self, seen: Seen, answer: Answer, usage: Json, model: str) -> None:
        chat = "messages" in seen.body
        choice: Json = {"index": 0, "finish_reason": answer.ending}
        choice |= {"message": answer.message()} if chat else {"text": answer.text}
        kind = "chat.completion" if chat else "text_completion"
        body = {"id": "cmpl-1", "object": kind, "created": 0, "model": model, "choices": [choice], "usage": usage}
        await self._whole(json.dumps(body).encode(), "application/json", 200, answer.headers)

    async def stream(
        self, seen: Seen, answer: Answer, usage: Json | None, model: str, *, hold: Callable[[], Awaitable[None]]
    ) -> None:
        await self._start(200, "text/event-stream; charset=utf-8", answer.headers)
        for line in answer.events:
            await self._body(line.encode())
        deltas = answer.deltas() if "messages" in seen.body else [{"text": piece} for piece in answer.pieces]
        for number, delta in enumerate(deltas):
            if number == answer.after and await self._interrupt(answer, hold):
                return
            await self._chunk(model, delta)
        if answer.after >= len(deltas) and await self._interrupt(answer, hold):
            return
        await self._chunk(model, {}, finish_reason=answer.ending)
        if usage is not None:
            await self._event({"id": "cmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        await self._body(b"data: [DONE]\n\n", more=False)

    async def _interrupt(self, answer: Answer, hold: Callable[[], Awaitable[None]]) -> bool:
        """The fault of a stream; true if nothing follows."""
        if answer.hold:
            await hold()
        match answer.fault:
            case Fault.CUT:
                raise ConnectionCutError
            case Fault.MALFORMED:
                await self._body(b'data: {"choices": [{"del\n\n')
            case Fault.UNFINISHED:
                await self._body(b"data: [DONE]\n\n", more=False)
            case Fault.ERROR:
                await self._event(answer.error)
                await self._body(b"data: [DONE]\n\n", more=False)
        return answer.fault in (Fault.UNFINISHED, Fault.ERROR)

    async def _chunk(self, model: str, delta: Json, finish_reason: str | None = None) -> None:
        choice: Json = {"index": 0, "finish_reason": finish_reason}
        choice |= delta if "text" in delta else {"delta": delta}
        await self._event({"id": "cmpl-1", "object": "chat.completion.chunk", "model": model, "choices": [choice]})

    async def _event(self, content: Any) -> None:
        await self._body(f"data: {json.dumps(content)}\n\n".encode())

    async def _whole(
        self, content: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        await self._start(status, content_type, {**(headers or {}), "content-length": str(len(content))})
        await self._body(content, more=False)

    async def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in {"content-type": content_type, **headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _body(self, content: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


def metrics_text(load: Load, running: int) -> str:
    """Prometheus text with the names of the dialect, and lines beside them that must not be taken for them."""
    running = load.running if load.running is not None else running
    if load.dialect == "sglang":
        named = {"sglang:num_queue_reqs": load.waiting, "sglang:num_running_reqs": running}
        named["sglang:token_usage"] = load.usage  # type: ignore[assignment]
    else:
        named = {"vllm:num_requests_waiting": load.waiting, "vllm:num_requests_running": running}
        named["vllm:kv_cache_usage_perc"] = load.usage  # type: ignore[assignment]
    lines = [f'{name}{{engine="0",model_name="m {{x}}"}} {float(value)}' for name, value in named.items()]
    if load.blocks is not None and load.dialect == "vllm":
        lines.append(f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{load.blocks}"}} 1.0')
        lines.append(f'vllm:num_preemptions_total{{engine="0"}} {float(load.preemptions)}')
    elif load.blocks is not None:
        lines.append(f'sglang:max_total_num_tokens{{model_name="m"}} {16.0 * load.blocks}')
    if load.drafted is not None:
        lines.append(f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {float(load.drafted)}')
        lines.append(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {float(load.accepted)}')
        lines.append('vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0')
    beside = 'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0'
    return "\n".join(["# HELP vllm:num_requests_waiting Number of requests waiting.", *lines, beside, ""])
