"""The memory of a hub that serves: what the garbage collector visits, and what requests leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolhub.serve.openapi import CallToolRequest, OpenTaskRequest

PROGRAM = """
import gc, os, signal, sys
from pathlib import Path
import anyio
from toolhub import Config
from toolhub.serve.run import BindSettings, serve

def on_ready(addresses, frontends):
    print(gc.get_freeze_count() > 50_000, gc.get_threshold()[0] > 10_000, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

config = Config.model_validate({"hub": {"state_dir": sys.argv[1]}})
bind = BindSettings(host=None, port=0, uds=Path(sys.argv[1], "hub.sock"), token=None, allow_inline=False)
anyio.run(lambda: serve(config, bind, on_ready=on_ready))
"""


REQUESTS = """
import functools, gc, http.client, json, sys
from pathlib import Path
import anyio, anyio.to_thread
from toolhub import Config
from toolhub.serve.run import BindSettings, serve

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

def garbage(url):
    connection = http.client.HTTPConnection(url.split("/")[2])

    def post(method, params, **headers):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        accept = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request("POST", "/mcp", body, accept | headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200 and '"result"' in text, text
        return answer

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    session = {"Mcp-Session-Id": post("initialize", hello).getheader("mcp-session-id")}
    modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
    for request in (
        functools.partial(post, "ping", {}, **session),
        functools.partial(post, "tools/list", {"_meta": META}, **modern),
    ):
        request()
        gc.collect()
        gc.disable()
        for _ in range(50):
            request()
        yield gc.collect()
        gc.enable()

async def main():
    async with anyio.create_task_group() as tasks:
        async def ask(url):
            print(*await anyio.to_thread.run_sync(lambda: list(garbage(url))), flush=True)
            tasks.cancel_scope.cancel()

        servers = {"clock": {"name": "clock", "builtin": "clock"}}
        config = Config.model_validate({"hub": {"state_dir": sys.argv[1]}, "servers": servers})
        bind = BindSettings(host="127.0.0.1", port=0, uds=None, token=None, allow_inline=False)
        on_ready = lambda addresses, frontends: tasks.start_soon(ask, addresses[0])
        await serve(config, bind, on_ready=on_ready)

anyio.run(main)
"""


def test_requests_at_mcp_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", REQUESTS, str(tmp_path)], capture_output=True, text=True, timeout=120)
    objects = [int(number) for number in done.stdout.split()]
    assert len(objects) == 2, done.stderr
    # One object per request would be 50.
    assert max(objects) < 50


def test_a_serving_hub_spares_the_garbage_collector_its_modules(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.quick
def test_a_body_leaves_no_string_values_behind() -> None:
    """A kept string takes 16 KiB of the allocator's memory away from everything of another size."""
    first, second = (OpenTaskRequest.model_validate_json(b'{"id": "an-id", "labels": {"a": "b-c"}}') for _ in range(2))
    assert first == second and first.id is not second.id and first.labels["a"] is not second.labels["a"]
    body = b'{"server": "s", "tool": "t", "arguments": {"text": "a text"}}'
    one, other = (CallToolRequest.model_validate_json(body).arguments["text"] for _ in range(2))
    assert one == other and one is not other
