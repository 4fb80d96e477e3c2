"""A model server that answers at once, so that only what stands before it takes time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from benchmarks.common.hub_process import served
from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act

ANSWER = "done"
_METRICS = 'vllm:num_requests_waiting 0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="1000001"} 1\n'


@asynccontextmanager
async def open_upstream() -> AsyncIterator[Act]:
    """Tells its address. A worker role."""
    routes = [
        Route("/v1/chat/completions", _complete, methods=["POST"]),
        Route("/v1/models", _models),
        Route("/metrics", _metrics),
    ]
    async with served(Starlette(routes=routes), "/v1") as act:
        yield act


async def _complete(request: Request) -> Response:
    """The answer as server-sent events. It asks for a tool, so the conversation keeps its place."""
    prompt_tokens = len(await request.body()) // 4
    call = {"index": 0, "id": "call", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ANSWER, "tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": _usage(prompt_tokens)},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Response(f"{events}data: [DONE]\n\n", media_type="text/event-stream")


def _usage(prompt_tokens: int) -> Json:
    details = {"cached_tokens": prompt_tokens * 9 // 10}
    return {"prompt_tokens": prompt_tokens, "completion_tokens": 8, "prompt_tokens_details": details}


async def _models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})


async def _metrics(request: Request) -> Response:
    return PlainTextResponse(_METRICS)
