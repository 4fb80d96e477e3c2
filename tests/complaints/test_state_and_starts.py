"""Sessions that forget, are shared or are started too often, and time-outs that end too much or nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import pytest
from http_server_process import HttpServer
from real_processes import HubFactory, fixture, pid_of

from testbed import third_party
from toolhub import CallTimeout, CircuitOpen, Hub, ServerSpec, StartError, ToolhubError, parse_config
from toolhub.config import Config
from toolhub.config.models import HubSettings

pytestmark = pytest.mark.anyio

WAIT_TIMEOUT_S = 120


async def test_context_forge_6481_a_server_is_initialised_once_for_many_calls(hubs: HubFactory) -> None:
    """There: a handshake per call, 7.6 s in place of 1.15 s."""
    python = str(third_party.mcp2_python())
    spec = ServerSpec(name="time", command=python, args=["-m", "mcp_server_time"], start_timeout_s=WAIT_TIMEOUT_S)
    async with hubs.task(spec, within=2 * WAIT_TIMEOUT_S) as task:
        for _ in range(20):
            assert not (await task.call("time", "get_current_time", {"timezone": "UTC"})).is_error
        (slot,) = task.statistics().slots
        assert (slot.starts, slot.calls) == (1, 20)


async def test_context_forge_2055_and_4205_two_users_do_not_share_a_counter(hubs: HubFactory) -> None:
    """There: state of one user was seen by others."""
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with hubs(fixture("echo")) as hub, hub.task("alice") as alice, hub.task("bob") as bob:
            seen = [(await alice.call("echo", "counter")).text for _ in range(3)]
            assert seen == ["1", "2", "3"]
            assert (await bob.call("echo", "counter")).text == "1"


async def test_claude_code_15945_a_call_that_never_ends_is_ended_by_its_deadline(hubs: HubFactory) -> None:
    """There: hung for 16 hours. The deadline is that of the config, as the caller gives none."""
    async with hubs.task(fixture("echo", call_timeout_s=1.0), within=WAIT_TIMEOUT_S) as task:
        with pytest.raises(CallTimeout) as failed:
            await task.call("echo", "sleep", {"seconds": 16 * 3600})
        assert failed.value.sent == "maybe"
        assert (await task.call("echo", "echo", {"text": "goes on"}, timeout=WAIT_TIMEOUT_S)).text == "goes on"


async def test_librechat_12162_a_server_that_always_dies_causes_few_starts_and_few_log_lines(
    hubs: HubFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """There: a storm of reconnects with 280,313 log lines a minute."""
    caplog.set_level(logging.INFO)
    restart = {"max_deaths": 3, "window_s": 600, "backoff_s": 0.01, "max_backoff_s": 0.01}
    errors: list[ToolhubError] = []
    async with hubs.task(fixture("exits_at_once", restart=restart), within=WAIT_TIMEOUT_S) as task:
        for _ in range(200):
            with pytest.raises(ToolhubError) as failed:
                await task.call("exits_at_once", "echo", {"text": "x"})
            errors.append(failed.value)
        (slot,) = task.statistics().slots
        assert slot.starts == 4
    assert sum(isinstance(error, StartError) for error in errors) == 4
    assert sum(isinstance(error, CircuitOpen) for error in errors) == 196
    assert len([record for record in caplog.records if record.name.startswith("toolhub")]) <= 20


async def test_openai_agents_1393_a_session_may_be_closed_by_another_task_than_its_opener(hubs: HubFactory) -> None:
    """There: "Attempted to exit cancel scope in a different task than it was entered in"."""
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with hubs(fixture("echo")) as hub:

            async def open_and_use() -> None:
                await (await hub.open_task("t")).call("echo", "pid")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(open_and_use)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.get_task("t").call, "echo", "pid")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.close_task, "t")
            assert hub.tasks == []


@pytest.fixture
def page() -> Iterator[ThreadingHTTPServer]:
    """A website of one page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>Article</title><h1>On things</h1><button>Press me</button>")

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


async def test_unsloth_7080_a_page_is_still_there_in_the_next_call(page: ThreadingHTTPServer) -> None:
    """There: each call silently got a blank browser. A real Chromium."""
    if third_party.chromium() is None:
        pytest.fail("no Chromium: install it (on Debian as root: apt-get install chromium)")
    address = f"127.0.0.1:{page.server_port}"
    server = {"builtin": "browser", "options": {"allow_private": [address]}}
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with Hub(parse_config({"servers": {"browser": server}})) as hub, hub.task("t") as task:
            opened = await task.call("browser", "browser_navigate", {"url": f"http://{address}/"})
            assert "Article" in str(opened.text)
            assert "On things" in str((await task.call("browser", "browser_snapshot")).text)


async def test_mcphub_1154_ninety_five_servers_do_not_start_at_the_same_time(tmp_path: Path) -> None:
    """There: 95 starts at once."""
    ledger, most = tmp_path / "ledger", 4
    env = {"LEDGER": str(ledger), "START_DELAY": "0.05"}
    specs = [fixture("noted_start", name=f"s{number}", env=env, start_timeout_s=WAIT_TIMEOUT_S) for number in range(95)]
    settings = HubSettings(state_dir=tmp_path / "state", max_starts=most)
    with anyio.fail_after(2 * WAIT_TIMEOUT_S):
        async with Hub(Config(servers={spec.name: spec for spec in specs}, hub=settings)) as hub, hub.task() as task:
            assert await task.warm() == {}
    steps = [1 if line == "begin" else -1 for line in ledger.read_text().split()]
    assert steps.count(1) == 95
    assert max(accumulate(steps)) <= most


async def test_xagent_2429_waiting_for_its_turn_does_not_use_up_a_servers_start_timeout(tmp_path: Path) -> None:
    """There: servers in the queue timed out before they were started."""
    slow = fixture("slow_start", name="slow", env={"START_DELAY": "8"}, start_timeout_s=WAIT_TIMEOUT_S)
    queued = [fixture("echo", name=f"queued-{number}", start_timeout_s=7) for number in range(3)]
    settings = HubSettings(state_dir=tmp_path / "state", max_starts=1)
    servers = {spec.name: spec for spec in [slow, *queued]}
    with anyio.fail_after(WAIT_TIMEOUT_S):
        async with Hub(Config(servers=servers, hub=settings)) as hub, hub.task() as task:
            assert await task.warm() == {}


async def test_sim_5817_a_call_that_times_out_does_not_end_a_healthy_connection(
    hubs: HubFactory, http_server: HttpServer
) -> None:
    """There: a time-out of one request retired the connection for all."""
    async with hubs.task(http_server.spec(stateful=True), within=WAIT_TIMEOUT_S) as task:
        before = (await task.call("remote", "pid")).text
        with pytest.raises(CallTimeout):
            await task.call("remote", "slow", {"seconds": 60}, timeout=1)
        assert (await task.call("remote", "pid")).text == before
        (slot,) = task.statistics().slots
        assert (slot.starts, slot.deaths) == (1, 0)


async def test_sim_5817_the_same_holds_for_a_process(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo"), within=WAIT_TIMEOUT_S) as task:
        await task.call("echo", "counter")
        before = pid_of(task, "echo")
        with pytest.raises(CallTimeout):
            await task.call("echo", "sleep", {"seconds": 60}, timeout=1)
        assert (await task.call("echo", "counter")).text == "2" and pid_of(task, "echo") == before
