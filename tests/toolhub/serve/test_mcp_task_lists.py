"""Tasks of servers (revision 2025-11-25) behind one client: listed together, and each found at its own server."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp_clients import RawClient
from real_processes import FIXTURES
from served_hub import Json, served, stub, write_config

# Has two tasks, one per page, and knows no others.
TASKS = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Server

name = sys.argv[2]
listed = [{"taskId": f"{name}-{number}", "status": "working"} for number in (1, 2)]

class Tasks(Server):
    def initialize(self, params):
        return {**super().initialize(params), "capabilities": {"tools": {}, "tasks": {"list": {}}}}

    def answer(self, method, params):
        if method == "tasks/list":
            is_second = params.get("cursor") == "2"
            return {"result": {"tasks": listed[1:]} if is_second else {"tasks": listed[:1], "nextCursor": "2"}}
        if method == "tasks/get":
            return {"result": next(one for one in listed if one["taskId"] == params["taskId"])}
        return super().answer(method, params)

Tasks(name).run()
"""


def test_the_tasks_of_several_servers_are_listed_together_and_found_again(tmp_path: Path) -> None:
    script = tmp_path / "tasks.py"
    script.write_text(TASKS)
    servers: Json = {
        name: {"command": sys.executable, "args": [str(script), str(FIXTURES), name]} for name in ("one", "other")
    }
    with served(write_config(tmp_path, servers={**servers, "echo": stub()})) as hub, hub.client(timeout=60) as http:
        client = RawClient(http)
        listed = client.request("tasks/list")["result"]["tasks"]
        assert [task["taskId"] for task in listed] == ["one-1", "one-2", "other-1", "other-2"]
        assert client.request("tasks/get", {"taskId": "other-2"})["result"] == listed[3]
        assert client.request("tasks/list", {"cursor": "2"})["error"]["code"] == -32602
