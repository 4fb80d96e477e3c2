"""A task's id ends up in paths, arguments and environments: what could leave its place is refused at every entrance."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_clients import MODES, PROTOCOL, mcp_client, text_of
from served_hub import ServedHub, error_of, open_task, served, write_config
from served_hub import text_of as text_of_answer

import toolhub
from toolhub import ConfigError

RULE = "use 1 to 128 letters (a to z), digits and . _ : - and begin with neither . nor -"
BAD = ["..", "../../../../etc", "a/b", ".hidden", "-x", "a b", "a" * 129]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each task has a folder below `work`; `secret.txt` is in none of them."""
    folder = tmp_path_factory.mktemp("ids")
    for name in ("work/one", "work/two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "own.txt").write_text(f"this is {name}")
    (folder / "work/secret.txt").write_text("secret")
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[ServedHub]:
    """A files server for each task, rooted at the folder that the task's id names."""
    files = {
        "command": sys.executable,
        "args": ["-m", "toolhub_servers", "files", "--root", f"{folder}/work/${{task.id}}"],
    }
    config = write_config(folder, servers={"files": files})
    with served(config, "--uds", str(folder / "hub.sock")) as running:
        yield running


def no_tasks(client: httpx2.Client) -> bool:
    return bool(client.get("/v1/tasks").json() == {"tasks": []})


@pytest.mark.parametrize("bad", [*BAD, "", "a\0b", "a\x1b[2J", "ä"], ids=ascii)
def test_the_task_api_answers_422_with_the_rule_and_opens_nothing(hub: ServedHub, bad: str) -> None:
    with hub.client() as client:
        error = error_of(client.post("/v1/tasks", json={"id": bad}), 422)
        assert error["type"] == "ConfigError" and RULE in error["message"] and error["message"].isprintable()
        assert no_tasks(client)


@pytest.mark.parametrize("field", ["run", "labels"])
def test_a_run_and_a_label_are_bound_by_the_rule_where_a_server_uses_them(hub: ServedHub, field: str) -> None:
    using = {"mine": {"command": sys.executable, "args": [f"${{task.{'run' if field == 'run' else 'user'}}}"]}}
    value: Any = "../../../../etc" if field == "run" else {"user": "../../../../etc"}
    with hub.client(unix=True) as client:
        error = error_of(client.post("/v1/tasks", json={"servers": using, field: value}), 422)
        assert error["type"] == "ConfigError" and RULE in error["message"] and "/etc" not in error["message"]
        assert no_tasks(client)


# A header cannot carry control characters: the HTTP parser refuses those.
@pytest.mark.parametrize("modern", [False, True], ids=MODES)
@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_the_header_of_mcp_clients_answers_422_with_the_rule_and_opens_nothing(
    hub: ServedHub, bad: str, modern: bool
) -> None:
    headers = {"Accept": "application/json, text/event-stream", "X-Toolhub-Task": bad}
    if modern:
        headers["Mcp-Protocol-Version"] = "2026-07-28"
    with hub.client() as client:
        error = error_of(client.post("/mcp", json=INITIALIZE, headers=headers), 422)
        assert error["type"] == "ConfigError" and RULE in error["message"]
        assert no_tasks(client)


def test_a_session_id_made_up_by_a_client_opens_nothing(hub: ServedHub) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": "../../../../etc"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    with hub.client() as client:
        assert client.post("/mcp", json=call, headers=headers).status_code == 404
        assert no_tasks(client)


@pytest.mark.anyio
@pytest.mark.parametrize("bad", ["..", "../../../../etc"])
async def test_a_remote_client_gets_a_config_error(hub: ServedHub, bad: str) -> None:
    async with toolhub.connect(hub.http) as remote:
        with pytest.raises(ConfigError, match="is not allowed"):
            await remote.open_task(bad)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_a_files_server_below_the_task_s_folder_serves_that_folder_only(hub: ServedHub, mode: str) -> None:
    with hub.client() as client:
        for name in ("one", "two"):
            with open_task(client, id=name) as task:
                assert text_of_answer(task.call("read_file", "files", path="own.txt")) == f"this is work/{name}"
                outside = task.call("read_file", "files", path="../secret.txt").json()["result"]
                assert outside["isError"] and "outside the served directory" in outside["content"][0]["text"]
                async with mcp_client(hub, mode, headers={"X-Toolhub-Task": name}) as mcp:
                    own = await mcp.call_tool("read_file", {"path": "own.txt"})
                    assert text_of(own) == f"this is work/{name}"
