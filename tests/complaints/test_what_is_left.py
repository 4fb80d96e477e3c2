"""Processes, memory and connections that stay when their task has ended, as people reported them elsewhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import psutil
import pytest
from real_processes import HubFactory, Process, below, eventually, fixture, noted, pid_of
from served_hub import eventually as eventually_blocking
from served_hub import new_task, served, stub, write_config

from testbed import third_party
from toolhub import CallTimeout, ServerSpec

pytestmark = pytest.mark.anyio

WAIT_TIMEOUT_S = 120


def zombies() -> list[psutil.Process]:
    """Children of this process that ended and were never waited for."""
    return [one for one in psutil.Process().children(recursive=True) if one.status() == psutil.STATUS_ZOMBIE]


async def test_docker_mcp_gateway_483_sixty_tasks_leave_no_processes_and_no_zombies(hubs: HubFactory) -> None:
    """There: deep research with 10 agents ended with 180 containers and 526 zombies."""
    limiter = anyio.CapacityLimiter(10)

    async def one_task(hub: Any) -> None:
        async with limiter, hub.task() as task:
            assert (await task.call("echo", "echo", {"text": "x"})).text == "x"

    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with hubs(fixture("echo")) as hub:
            async with hub.task() as task:
                await task.call("echo", "pid")
            idle = len(below(os.getpid()))  # the supervisor
            async with anyio.create_task_group() as tasks:
                for _ in range(60):
                    tasks.start_soon(one_task, hub)
            assert hub.tasks == [] and zombies() == []
            await eventually(lambda: len(below(os.getpid())) <= idle)


def test_claude_code_1935_copies_of_a_server_do_not_outlive_their_clients(tmp_path: Path) -> None:
    """There: 19 copies of one server, each kept by a session that had ended."""
    config = write_config(tmp_path, servers={"echo": stub()})
    with served(config) as hub:
        with hub.client() as client:
            for _ in range(5):
                new_task(client, lease_s=0.5).call("pid")
        # The clients are gone without a word; only their leases tell.
        eventually_blocking(lambda: not _tasks(hub), within=WAIT_TIMEOUT_S)
        eventually_blocking(lambda: len(hub.processes()) <= 1, within=WAIT_TIMEOUT_S)  # the supervisor


def _tasks(hub: Any) -> list[Any]:
    with hub.client() as client:
        tasks: list[Any] = client.get("/v1/tasks").json()["tasks"]
        return tasks


@pytest.mark.slow
async def test_claude_code_40927_three_hundred_runs_leave_nothing(hubs: HubFactory) -> None:
    """There: out of memory after 236 headless runs, each of which had left its servers behind."""
    with anyio.fail_after(WAIT_TIMEOUT_S * 2):
        async with hubs(fixture("echo")) as hub:
            idle = 0
            for number in range(300):
                async with hub.task() as task:
                    await task.call("echo", "pid")
                idle = idle or len(below(os.getpid()))
                assert number % 50 or not hub.tasks
            await eventually(lambda: len(below(os.getpid())) <= idle)
            assert zombies() == []


@pytest.fixture
def upstream() -> Iterator[ThreadingHTTPServer]:
    """An MCP server over HTTP that notes which sessions it was asked to end: in `server.ended`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    server.daemon_threads = True
    server.ended = []  # type: ignore[attr-defined]  # what the handler notes
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class _Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self._send(202)
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "u"}}
        results = {
            "initialize": {**about, "serverInfo": {"name": "upstream", "version": "1"}},
            "tools/list": {"tools": [{"name": "ping", "inputSchema": {"type": "object"}}]},
        }
        result = results.get(message["method"], {"content": [{"type": "text", "text": "pong"}]})
        session = {"mcp-session-id": f"s-{os.urandom(4).hex()}"} if message["method"] == "initialize" else {}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        return self._send(200, body, **session)

    def do_GET(self) -> None:
        self._send(405)

    def do_DELETE(self) -> None:
        self.server.ended.append(self.headers["mcp-session-id"])  # type: ignore[attr-defined]
        self._send(200)

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The tests read what was noted."""


async def test_librechat_14248_every_session_of_an_http_server_is_ended_with_delete(
    hubs: HubFactory, upstream: ThreadingHTTPServer
) -> None:
    """There: sessions were never ended, and the server grew to 3 GB."""
    spec = ServerSpec(name="remote", url=f"http://127.0.0.1:{upstream.server_port}/mcp")
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with hubs(spec) as hub:
            for _ in range(5):
                async with hub.task() as task:
                    assert (await task.call("remote", "ping")).text == "pong"
    ended = upstream.ended  # type: ignore[attr-defined]
    assert len(ended) == 5 and len(set(ended)) == 5


async def test_vision_agents_529_a_closed_task_uses_no_cpu(hubs: HubFactory) -> None:
    """There: 100 % of a core after close."""
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with hubs(fixture("echo")) as hub:
            for _ in range(3):
                async with hub.task() as task:
                    with pytest.raises(CallTimeout):
                        await task.call("echo", "sleep", {"seconds": 60}, timeout=0.1)
            began = time.process_time()
            await anyio.sleep(1)
            assert time.process_time() - began < 0.5


async def test_openclaw_75323_what_a_server_left_behind_ends_with_its_task(hubs: HubFactory, tmp_path: Path) -> None:
    """There: killing a server missed the containers that it had started."""
    pidfile = tmp_path / "pids"
    left: list[Process] = []
    async with hubs.task(fixture("daemonises", env={"PIDFILE": str(pidfile)}), within=WAIT_TIMEOUT_S) as task:
        await task.call("daemonises", "pid")
        left = [Process.of(pid_of(task, "daemonises")), *noted(pidfile, 2)]
        assert len(left) == 3 and all(one.is_alive for one in left)
    assert not any(one.is_alive for one in left)


async def test_openclaw_75323_a_tree_of_npx_ends_with_its_task(hubs: HubFactory) -> None:
    """The server of others that people run most: npm, a shell, node."""
    command, *args = third_party.npx_command("mcp-server-everything")
    spec = ServerSpec(name="everything", command=command, args=args, start_timeout_s=WAIT_TIMEOUT_S)
    tree: list[Process] = []
    async with hubs.task(spec, within=2 * WAIT_TIMEOUT_S) as task:
        assert "hello" in str((await task.call("everything", "echo", {"message": "hello"})).text)
        tree = below(pid_of(task, "everything"))
        assert tree
    assert not any(one.is_alive for one in tree)
