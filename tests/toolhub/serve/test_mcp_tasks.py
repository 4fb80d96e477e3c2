"""Whose processes an MCP client uses, and what it sees of several servers: names, collisions, a dead one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp import MCPError
from mcp_clients import MODES, RawClient, mcp_client, text_of
from real_processes import FIXTURES
from served_hub import ServedHub, eventually, open_task, served, stub, write_config
from served_hub import text_of as text_of_answer

pytestmark = pytest.mark.anyio

RICH = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Server, text

class Rich(Server):
    def describe(self, name):
        return {**super().describe(name), "xExtra": [1], "annotations": {"xHint": True}}

server = Rich("rich")
server.tool("only_here")(lambda call: text("only here"))
server.run()
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """Two servers with the same tools, one of them shared by all tasks, and one that cannot be started."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "rich_server.py").write_text(RICH)
    servers = {
        "own": stub(),
        "everybody__s": stub(share="hub"),
        "rich": {"command": sys.executable, "args": [str(folder / "rich_server.py"), str(FIXTURES)]},
        "dead": {"command": "no-such-program"},
    }
    with served(write_config(folder, servers=servers)) as running:
        yield running


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_colliding_tools_are_listed_with_their_servers_and_a_dead_server_costs_only_its_own(
    hub: ServedHub, mode: str
) -> None:
    async with mcp_client(hub, mode) as client:
        names = [listed.name for listed in (await client.list_tools()).tools]
        assert {"own__echo", "everybody__s__echo"} <= set(names) and "echo" not in names
        assert [name for name in names if name.startswith("dead") or "__" not in name] == ["only_here"]
        for server in ("own", "everybody__s"):
            assert text_of(await client.call_tool(f"{server}__echo", {"text": server})) == server


async def test_a_call_of_a_dead_server_says_why_it_is_dead(hub: ServedHub) -> None:
    async with mcp_client(hub) as client:
        result = await client.call_tool("dead__anything", {})
    assert result.is_error and "not found on PATH" in str(result.content)
    assert result.meta is not None and result.meta["toolhub/error"]["sent"] == "no"


# --- processes ------------------------------------------------------------------------------------------------------


async def test_each_session_has_its_own_process_and_all_share_what_is_shared(hub: ServedHub) -> None:
    async with mcp_client(hub) as one, mcp_client(hub) as other:
        own = [text_of(await client.call_tool("own__pid")) for client in (one, one, other)]
        shared = [text_of(await client.call_tool("everybody__s__pid")) for client in (one, other)]
    assert own[0] == own[1] != own[2] and shared[0] == shared[1] and shared[0] not in own


@pytest.mark.parametrize("mode", MODES)
async def test_a_header_chooses_a_task_that_the_task_api_also_uses(hub: ServedHub, mode: str) -> None:
    with hub.client() as http, open_task(http, id=f"chosen-{mode}") as task:
        pid = text_of_answer(task.call("pid", "own"))
        async with mcp_client(hub, mode, headers={"X-Toolhub-Task": task.id}) as client:
            assert text_of(await client.call_tool("own__pid")) == pid
        async with mcp_client(hub, mode) as client:
            assert text_of(await client.call_tool("own__pid")) != pid


def test_the_end_of_a_session_ends_its_task(hub: ServedHub) -> None:
    with hub.client() as http:
        raw = RawClient(http)
        answer = raw.request("tools/call", {"name": "own__pid", "arguments": {}})
        (task,) = (one for one in http.get("/v1/tasks").json()["tasks"] if one["id"].startswith("mcp-"))
        pids = [slot["pid"] for slot in task["slots"] if slot["server"] == "own"]
        assert [int(answer["result"]["content"][0]["text"])] == pids
        assert raw.delete() == 200
        eventually(lambda: task["id"] not in [one["id"] for one in http.get("/v1/tasks").json()["tasks"]])
        eventually(lambda: not any(process.pid in pids for process in hub.processes()))


def test_the_end_of_a_session_does_not_end_a_task_that_was_chosen(hub: ServedHub) -> None:
    with hub.client() as http, open_task(http, id="lasting") as task:
        http.headers["X-Toolhub-Task"] = task.id
        raw = RawClient(http)
        raw.request("tools/list")
        assert raw.delete() == 200
        assert task.show()["id"] == "lasting"


# --- leases ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[ServedHub]:
    """A hub whose leases run out while a test waits."""
    with served(write_config(tmp_path, servers={"own": stub()}, limits={"task_lease_s": 1.5})) as running:
        yield running


async def test_a_client_that_pings_or_listens_keeps_its_process_and_a_silent_one_must_begin_again(
    brief: ServedHub,
) -> None:
    with brief.client() as http:
        silent, pinging = RawClient(http), RawClient(http)
        async with mcp_client(brief) as listening:  # the SDK's client holds a stream open for notifications
            before = [pid_of(silent), pid_of(pinging), text_of(await listening.call_tool("pid"))]

            def silent_is_over() -> bool:
                pinging.request("ping")
                return len(http.get("/v1/tasks").json()["tasks"]) == 2

            await anyio.to_thread.run_sync(lambda: eventually(silent_is_over, within=30))
            for _ in range(2):
                assert silent.status_of("tools/call", {"name": "pid", "arguments": {}}) == 404
            after = [pid_of(RawClient(http)), pid_of(pinging), text_of(await listening.call_tool("pid"))]
    assert before[1:] == after[1:] and before[0] not in after


async def test_a_client_of_the_sdk_whose_task_was_closed_gets_an_error_and_a_new_connection_works(
    brief: ServedHub,
) -> None:
    with brief.client() as http:
        async with mcp_client(brief) as client:
            first = text_of(await client.call_tool("pid"))
            (task,) = http.get("/v1/tasks").json()["tasks"]
            assert http.delete(f"/v1/tasks/{task['id']}").status_code == 204
            for _ in range(2):
                with pytest.raises(MCPError, match="Session not found|Session terminated"):
                    await client.call_tool("pid")
            assert http.get("/v1/tasks").json() == {"tasks": []}
        async with mcp_client(brief) as client:
            assert text_of(await client.call_tool("pid")) != first


def pid_of(client: RawClient) -> str:
    answer = client.request("tools/call", {"name": "pid", "arguments": {}})
    return str(answer["result"]["content"][0]["text"])


# --- what a tool says about itself ----------------------------------------------------------------------------------


def test_unknown_fields_of_tools_survive(hub: ServedHub) -> None:
    with hub.client() as http:
        raw = RawClient(http)
        (listed,) = (one for one in raw.request("tools/list")["result"]["tools"] if one["name"] == "only_here")
        assert raw.delete() == 200
    assert listed["xExtra"] == [1] and listed["annotations"] == {"xHint": True}
