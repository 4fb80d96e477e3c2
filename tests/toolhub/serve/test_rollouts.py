"""Rollouts of trainers: one token for one task, one rollout for one key, and a report of whose fault errors were."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from mcp_clients import RawClient, mcp_client, text_of
from served_hub import Json, ServedHub, error_of, eventually, open_task, served, stub, write_config

import toolhub
from toolhub import CallTimeout, ConfigError, Overloaded, SessionLost, TaskClosed, ToolhubError, ToolNotFound
from toolhub.errors import is_fault_of_infrastructure

TOKEN = "the-token-of-the-hub"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub with a token, one server that works and one that cannot be started."""
    folder = tmp_path_factory.mktemp("rollouts")
    broken = {"command": "/nowhere/no-such-server"}
    config = write_config(folder, servers={"echo": stub(), "broken": broken})
    with served(config, "--uds", str(folder / "hub.sock"), "--token", TOKEN, token=TOKEN) as running:
        yield running


@pytest.fixture(scope="module")
def open_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub on loopback without a token."""
    with served(write_config(tmp_path_factory.mktemp("open"), servers={"echo": stub()})) as running:
        yield running


@pytest.fixture
def client(hub: ServedHub) -> Iterator[httpx2.Client]:
    with hub.client() as opened:
        yield opened


def opened(client: httpx2.Client, **body: Any) -> Json:
    answer = client.post("/v1/rollouts", json={"servers": ["echo"]} | body)
    assert answer.status_code == 201, answer.text
    rollout: Json = answer.json()
    return rollout


@pytest.fixture
def rollout(client: httpx2.Client) -> Iterator[Json]:
    one = opened(client)
    yield one
    client.delete(f"/v1/rollouts/{one['id']}")


def as_agent(hub: ServedHub, rollout: Json, *, unix: bool = False, headers: Json | None = None) -> httpx2.Client:
    """What an agent has of a hub: the address and the rollout's token."""
    transport = httpx2.HTTPTransport(uds=hub.uds) if unix else None
    given = rollout["mcp"]["headers"] | (headers or {})
    return httpx2.Client(base_url=hub.http, transport=transport, headers=given, timeout=10)


# --- whose fault an error is ------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    "error, expected",
    [
        (SessionLost("x"), True),
        (Overloaded("x"), True),
        (TaskClosed("x"), True),
        (ToolhubError("x"), True),
        (CallTimeout("in a queue", timeout=1, sent="no"), True),
        (CallTimeout("the tool ran", timeout=1, sent="maybe"), False),
        (ToolNotFound("x"), False),
    ],
    ids=repr,
)
def test_an_error_is_the_infrastructures_unless_the_models_call_caused_it(error: ToolhubError, expected: bool) -> None:
    assert is_fault_of_infrastructure(error) is expected


# --- a rollout's life -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_agent_with_the_token_uses_the_rollouts_task_without_naming_it(
    hub: ServedHub, client: httpx2.Client, rollout: Json, mode: str
) -> None:
    own = {"X-Toolhub-Task": rollout["id"]}  # `mcp_client` would name another
    async with mcp_client(hub, mode, headers=rollout["mcp"]["headers"] | own) as agent:
        assert text_of(await agent.call_tool("echo", {"text": "hello"})) == "hello"
    report = client.get(f"/v1/rollouts/{rollout['id']}").json()
    assert report["counts"] == {"ok": 1, "tool_error": 0, "infrastructure_error": 0, "cancelled": 0}
    (call,) = report["calls"]
    assert (call["server"], call["tool"], call["outcome"]) == ("echo", "echo", "ok")
    assert 0 <= call["waited_s"] <= call["seconds"]


def test_the_token_works_as_the_password_of_an_address_for_clients_without_headers(
    hub: ServedHub, rollout: Json
) -> None:
    address = hub.http.replace("http://", f"http://rollout:{rollout['token']}@")
    with httpx2.Client(base_url=address, timeout=10) as agent:
        names = [tool["name"] for tool in RawClient(agent).request("tools/list")["result"]["tools"]]
    assert "echo" in names


def test_closing_ends_the_processes_and_returns_the_report_and_twice_is_no_error(
    hub: ServedHub, client: httpx2.Client, rollout: Json
) -> None:
    with as_agent(hub, rollout) as http:
        agent = RawClient(http)
        pid = int(agent.request("tools/call", {"name": "pid"})["result"]["content"][0]["text"])
    (server,) = (one for one in hub.processes() if one.pid == pid)
    first = client.delete(f"/v1/rollouts/{rollout['id']}").json()
    assert not server.is_alive
    assert first["state"] == "closed" and first["counts"]["ok"] == 1
    assert client.delete(f"/v1/rollouts/{rollout['id']}").json() == first
    assert rollout["id"] not in client.get("/v1/rollouts").json()["rollouts"]
    assert error_of(client.post(f"/v1/rollouts/{rollout['id']}/renew"), 410)["type"] == "TaskClosed"


def test_a_repeated_opening_with_one_key_gets_the_same_rollout_also_at_the_same_time(client: httpx2.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        rollouts = list(pool.map(lambda _: opened(client, idempotency_key="k1"), range(8)))
    assert {one["id"] for one in rollouts} == {rollouts[0]["id"]}
    assert {one["token"] for one in rollouts} == {rollouts[0]["token"]}
    other = client.post("/v1/rollouts", json={"servers": ["echo"], "idempotency_key": "k1", "run": "another"})
    assert "'k1' was used with another body" in error_of(other, 422)["message"]
    client.delete(f"/v1/rollouts/{rollouts[0]['id']}")
    late = client.post("/v1/rollouts", json={"servers": ["echo"], "idempotency_key": "k1"})
    assert error_of(late, 410)["type"] == "TaskClosed"
    assert client.get("/v1/rollouts").json() == {"rollouts": []}


def test_a_server_that_the_config_lacks_is_refused_with_those_that_it_has(client: httpx2.Client) -> None:
    error = error_of(client.post("/v1/rollouts", json={"servers": ["ecko"]}), 422)
    assert error["type"] == "ConfigError" and "'ecko'; it has: echo, broken" in error["message"]


def test_a_rollout_whose_lease_ran_out_says_so_and_its_token_opens_nothing(
    hub: ServedHub, client: httpx2.Client
) -> None:
    rollout = client.post("/v1/rollouts", json={"lease_s": 0.1}).json()
    path = f"/v1/rollouts/{rollout['id']}"
    eventually(lambda: client.get(path).json()["state"] == "expired")
    report = client.delete(path).json()
    assert report["state"] == "expired"
    with as_agent(hub, rollout) as http:
        assert "has ended" in error_of(http.post("/mcp", json={}), 401)["message"]


# --- whose fault, in a report -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_report_tells_errors_of_tools_from_those_of_the_infrastructure(hub: ServedHub) -> None:
    async with toolhub.connect(hub.http, token=TOKEN) as remote:
        async with remote.rollout(run="step-1") as rollout:
            assert (await rollout.call("echo", "fail")).is_error
            with pytest.raises(ToolNotFound):
                await rollout.call("no_such_server", "echo")
            await rollout.raise_for_infrastructure()
            with pytest.raises(SessionLost):
                await rollout.call("echo", "die")
            with pytest.raises(ToolhubError):
                await rollout.call("broken", "anything")
        report = await rollout.report()
    assert report["state"] == "closed" and report["run"] == "step-1"
    assert report["counts"] == {"ok": 0, "tool_error": 2, "infrastructure_error": 2, "cancelled": 0}
    assert [call["error"] for call in report["calls"]] == [None, "ToolNotFound", "SessionLost", "StartError"]
    with pytest.raises(ToolhubError, match="2 of the calls of rollout-.* StartError of server 'broken'; do not score"):
        await rollout.raise_for_infrastructure()


# --- what the token does not open -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/v1/tasks"),
        ("POST", "/v1/tasks"),
        ("GET", "/v1/statistics"),
        ("GET", "/v1/servers"),
        ("POST", "/v1/rollouts"),
        ("GET", "/v1/rollouts"),
        ("DELETE", "/v1/rollouts/{id}"),
        ("POST", "/v1/tasks/{id}/calls"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("POST", "/llm/v1/chat/completions"),
        ("GET", "/mcp/../v1/tasks"),
    ],
)
def test_a_rollouts_token_opens_only_mcp(hub: ServedHub, rollout: Json, method: str, path: str, unix: bool) -> None:
    with as_agent(hub, rollout, unix=unix) as agent:
        answer = agent.request(method, path.format(id=rollout["id"]))
    assert error_of(answer, 401)["type"] == "Unauthorized"


def test_a_rollouts_token_reaches_no_other_task_by_header_handle_or_session(
    hub: ServedHub, client: httpx2.Client, rollout: Json
) -> None:
    other = opened(client)
    with open_task(client, id="private"), as_agent(hub, other) as theirs, as_agent(hub, rollout) as mine:
        session = RawClient(theirs)
        for task_id in ("private", other["id"], "a-new-one"):
            with as_agent(hub, rollout, headers={"X-Toolhub-Task": task_id}) as agent:
                assert "opens only its rollout's task" in error_of(_initialize(agent), 403)["message"]
            handled = _modern_call(mine, {"toolhub/task": task_id})
            assert "opens only its rollout's task" in error_of(handled, 403)["message"]
        # The session of another rollout, and that of a client with the hub's own token.
        whole = RawClient(client)
        for foreign in (session, whole):
            headers = {**foreign._headers, **rollout["mcp"]["headers"]}
            listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            assert mine.post("/mcp", json=listing, headers=headers).status_code == 404
            assert mine.get("/mcp", headers=headers).status_code == 404
            assert mine.delete("/mcp", headers=headers).status_code == 404
        assert whole.delete() == 200
        tasks = {task["id"]: task["calls"] for task in client.get("/v1/tasks").json()["tasks"]}
    client.delete(f"/v1/rollouts/{other['id']}")
    assert "a-new-one" not in tasks and tasks["private"] == 0


@pytest.mark.parametrize("which", ["hub", "open_hub"])
def test_a_wrong_or_ended_token_is_refused_even_where_no_token_is_needed(
    which: str, request: pytest.FixtureRequest
) -> None:
    hub: ServedHub = request.getfixturevalue(which)
    with hub.client() as client:
        one, ended = opened(client), opened(client)
        client.delete(f"/v1/rollouts/{ended['id']}")
        wrong = [one["token"][:-1], one["token"] + "x", f"rollout.{one['id']}.", "rollout.", ended["token"]]
        for token in wrong:
            basic = base64.b64encode(f"rollout:{token}".encode()).decode()
            for authorization in (f"Bearer {token}", f"Basic {basic}"):
                answer = httpx2.post(f"{hub.http}/mcp", json={}, headers={"Authorization": authorization})
                assert answer.status_code in (401, 403), answer.text
                assert answer.json()["error"]["type"] == "Unauthorized"
        client.delete(f"/v1/rollouts/{one['id']}")


def test_no_token_of_a_rollout_is_in_the_log_or_in_a_report(hub: ServedHub, client: httpx2.Client) -> None:
    rollout = opened(client)
    with as_agent(hub, rollout) as agent:
        RawClient(agent).request("tools/call", {"name": "die"})
    path = f"/v1/rollouts/{rollout['id']}"
    client.delete(path)
    secret = rollout["token"].rpartition(".")[2]
    assert rollout["id"] in hub.said and secret not in hub.said
    assert secret not in client.get(path).text + client.get("/v1/statistics").text + client.get("/metrics").text


# --- the trainer's death ----------------------------------------------------------------------------------------------

TRAINER = """
import asyncio, sys, toolhub

async def main(url, token):
    hub = toolhub.connect(url, token=token)

    async def attempt(number):
        async with hub.rollout(run="step-7", servers=["echo"], lease=15) as rollout:
            print((await rollout.call("echo", "pid")).text, flush=True)
            await asyncio.Event().wait()

    await asyncio.gather(*map(attempt, range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_trainer_that_is_killed_leaves_nothing(hub: ServedHub, client: httpx2.Client) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, hub.http, TOKEN], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    pids = {int(trainer.stdout.readline()) for _ in range(8)}
    servers = [one for one in hub.processes() if one.pid in pids]
    rollouts = client.get("/v1/rollouts").json()["rollouts"]
    assert len(servers) == len(rollouts) == 8
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    trainer.stdout.close()
    eventually(lambda: client.get("/v1/rollouts").json() == {"rollouts": []}, within=90)
    eventually(lambda: not any(one.is_alive for one in servers))
    assert client.get("/v1/tasks").json() == {"tasks": []}
    assert {client.get(f"/v1/rollouts/{one}").json()["state"] for one in rollouts} == {"expired"}


@pytest.mark.anyio
async def test_a_trainer_that_works_keeps_its_rollouts_for_longer_than_a_lease(hub: ServedHub) -> None:
    async with toolhub.connect(hub.http, token=TOKEN) as remote, remote.rollout(servers=["echo"], lease=8) as rollout:
        with hub.client() as client:
            eventually(lambda: client.get(f"/v1/tasks/{rollout.id}").json()["age_seconds"] > 9)
        assert (await rollout.call("echo", "echo", {"text": "still"})).text == "still"


@pytest.mark.anyio
async def test_a_key_of_an_ended_rollout_raises_and_another_body_too(hub: ServedHub) -> None:
    async with toolhub.connect(hub.http, token=TOKEN) as remote:
        async with remote.rollout(servers=["echo"], idempotency_key="k2"):
            with pytest.raises(ConfigError, match="with another body"):
                async with remote.rollout(servers=["echo"], idempotency_key="k2", run="other"):
                    pass
        with pytest.raises(TaskClosed, match="has ended"):
            async with remote.rollout(servers=["echo"], idempotency_key="k2"):
                pass


def _initialize(agent: httpx2.Client) -> httpx2.Response:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    return agent.post("/mcp", json=message, headers={"Accept": "application/json, text/event-stream"})


def _modern_call(agent: httpx2.Client, meta: Json) -> httpx2.Response:
    version = "2026-07-28"
    envelope = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "pid",
    }
    params = {"name": "pid", "arguments": {}, "_meta": envelope | meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return agent.post("/mcp", json=message, headers=headers)
