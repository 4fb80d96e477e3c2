"""A hub with the LLM proxy before stand-ins of model servers, served on loopback in the test's own loop."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import uvicorn
from llm_stand_in.model_server import ModelServer, Seen
from openai.types.chat import ChatCompletionMessageParam
from toolhub_agent.kv_hints.engines import PREFETCH_ID_PREFIX
from toolhub_agent.proxy.app import LlmProxy

from toolhub import Hub, parse_config
from toolhub.serve.app import Application

Json = dict[str, Any]
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TASK: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You search. " * 20},
    {"role": "user", "content": "What is it?"},
]


@dataclass
class ProxyStage:
    """url: of the proxy, as a client's base_url."""

    hub: Hub
    proxy: LlmProxy
    root: str
    token: str | None

    @property
    def url(self) -> str:
        return f"{self.root}/llm/v1"

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        """As users have it: one base URL, the hub's token as the key, no retries that would hide anything."""
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        given = {"base_url": self.url, "api_key": self.token or "none", "max_retries": 0, "http_client": http}
        return openai.AsyncOpenAI(**{**given, **options})

    def http(self, **options: Any) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        headers["content-type"] = "application/json"  # for tests that write the body themselves
        return httpx2.AsyncClient(base_url=self.root, trust_env=False, headers=headers, timeout=20, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(
            sample.value
            for family in self.proxy.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def _listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


class _Server(uvicorn.Server):
    """Leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def chat(content: str = "hello", **more: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def is_prefetch(seen: Seen) -> bool:
    return seen.headers.get("x-request-id", "").startswith(PREFETCH_ID_PREFIX)


def xml_call(**arguments: Any) -> str:
    """A turn that asks for the tool of llm_proxy_tools in MiroFlow's way."""
    return (
        "I look it up.\n<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>search</tool_name>\n"
        f"<arguments>\n{json.dumps(arguments)}\n</arguments>\n</use_mcp_tool>"
    )


@asynccontextmanager
async def open_stage(
    *servers: ModelServer, folder: Path, token: str | None = None, **llm: Any
) -> AsyncIterator[ProxyStage]:
    """llm: more of the section. The hub has one tool, `tools/search`, see llm_proxy_tools."""
    hints = {"mode": "on", "min_prefix_tokens": 1, "lead_time_s": 0} | llm.pop("hints", {})
    section = {"endpoints": [server.url for server in servers], "hints": hints} | llm
    config = parse_config(
        {
            "hub": {"state_dir": str(folder / "state")},
            "servers": {"tools": {"builtin": "llm_proxy_tools:create_server"}},
            "llm": section,
        },
        environ={},
    )
    async with _listener() as listener, Hub(config) as hub:
        application = Application(hub, token=token, allow_inline=False)
        async with application.running(), anyio.create_task_group() as tasks:
            (proxy,) = application.frontends
            assert isinstance(proxy, LlmProxy)
            server = _Server(uvicorn.Config(application.asgi, log_level="critical", lifespan="off", ws="none"))
            tasks.start_soon(server.serve, [listener])
            with anyio.fail_after(30):
                while not server.started:
                    await anyio.sleep(0.001)
            try:
                yield ProxyStage(hub, proxy, f"http://127.0.0.1:{listener.getsockname()[1]}", token)
            finally:
                application.end_requests()
                server.should_exit = True
