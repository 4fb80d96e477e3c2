"""A well-behaved stdio server through the hub: everything MCP lets it say arrives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from real_processes import FIXTURES, HubFactory, eventually, fixture

from toolhub import CallTimeout, ServerSpec, ToolNotFound
from toolhub.sessions.session import ERROR_META

pytestmark = pytest.mark.anyio


@pytest.mark.quick
async def test_a_call_returns_what_the_server_answered(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        result = await task.call("echo", "echo", {"text": "grüße ✓\n\u2028"})
        assert result.text == "grüße ✓\n\u2028"
        assert not result.is_error


async def test_progress_and_logs_arrive_while_the_call_runs(hubs: HubFactory) -> None:
    seen: list[Any] = []
    answered = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, answered.is_set()))

    async def on_log(entry: dict[str, Any]) -> None:
        seen.append((entry["data"], answered.is_set()))

    async with hubs.task(fixture("echo")) as task:
        await task.call("echo", "progress", {"steps": 3}, on_progress=on_progress, on_log=on_log)
        answered.set()
        await task.call("echo", "echo", {"text": "what came late has come now"})
    assert sorted(map(str, seen)) == [
        "('3 steps', False)",
        "(1.0, 3.0, False)",
        "(2.0, 3.0, False)",
        "(3.0, 3.0, False)",
    ]


async def test_fields_that_no_specification_knows_survive(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        result = await task.call("echo", "structured")
    assert result.structured == {"answer": 42}
    assert result.raw["xExtra"] == 1
    assert result.content[0]["xBlockExtra"] == 1


async def test_an_image_arrives_as_the_server_sent_it(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        (block,) = (await task.call("echo", "image")).content
    assert block["type"] == "image" and block["mimeType"] == "image/png"
    assert block["data"].startswith("iVBORw0KGgo")


async def test_a_failing_tool_is_a_result_for_the_model(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        result = await task.call("echo", "fail", {"message": "no such page"})
        assert result.is_error and result.text == "no such page"
        refused = await task.call("echo", "echo", {})
        assert refused.is_error and refused.raw["_meta"][ERROR_META]["code"] == -32602
        unknown = await task.call("echo", "no_such_tool")
        assert unknown.is_error and "no_such_tool" in unknown.text


async def test_an_unknown_server_is_refused_with_near_names(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        with pytest.raises(ToolNotFound, match="'ecko'") as caught:
            await task.call("ecko", "echo", {"text": ""})
    assert caught.value.near == ("echo",)


async def test_every_page_of_a_tool_list_is_fetched(hubs: HubFactory) -> None:
    async with hubs.task(fixture("paged"), fixture("echo")) as task:
        paged = [tool.name for tool in await task.tools("paged")]
        assert paged == [tool.name for tool in await task.tools("echo")]
        assert len(paged) > 3


async def test_list_changed_refreshes_the_tools(hubs: HubFactory) -> None:
    changed = anyio.Event()
    with anyio.fail_after(30):
        async with hubs(fixture("echo")) as hub, hub.task("t") as task:
            hub.on_tools_changed(lambda server: changed.set() if server == "echo" else None)
            assert "later" not in [tool.name for tool in await task.tools()]
            await task.call("echo", "add_tool", {"name": "later"})
            await changed.wait()
            assert "later" in [tool.name for tool in await task.tools()]
            assert (await task.call("echo", "later")).text == "later"


async def test_calls_on_one_session_run_side_by_side(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task, anyio.create_task_group() as callers:
        callers.start_soon(task.call, "echo", "sleep", {"seconds": 60})
        assert (await task.call("echo", "echo", {"text": "not behind it"})).text == "not behind it"
        callers.cancel_scope.cancel()


async def test_a_request_beside_tools_passes(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        assert await task.request("echo", "ping") == {}


async def test_a_deadline_reaches_the_server_and_the_session_stays_usable(hubs: HubFactory, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    spec = fixture("echo", env={"LEDGER": str(ledger), "LEDGER_DELAY": "60"})
    async with hubs.task(spec) as task:
        before = (await task.call("echo", "pid")).text
        with pytest.raises(CallTimeout) as caught:
            await task.call("echo", "ledger", {"key": "k"}, timeout=0.3)
        assert caught.value.sent == "maybe" and caught.value.timeout == 0.3
        await eventually(lambda: "cancelled" in ledger.read_text())
        assert (await task.call("echo", "pid")).text == before


async def test_cancelling_a_call_reaches_the_server_and_the_session_stays_usable(
    hubs: HubFactory, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    spec = fixture("echo", env={"LEDGER": str(ledger), "LEDGER_DELAY": "60"})
    async with hubs.task(spec) as task:
        before = (await task.call("echo", "pid")).text
        async with anyio.create_task_group() as callers:
            callers.start_soon(task.call, "echo", "ledger", {"key": "k"})
            await eventually(ledger.exists)
            callers.cancel_scope.cancel()
        lines = await eventually(lambda: ledger.read_text().splitlines()[1:])
        assert lines[0].startswith("cancelled ")
        assert (await task.call("echo", "pid")).text == before


# Answers each call with an error of its own, with the code and the data of its arguments.
REFUSES = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Server

class Refuses(Server):
    def _start_call(self, call):
        self.send({"id": call.id, "error": {"code": -32000, "message": "try later", **call.arguments}})

server = Refuses("refuses")
server.tool("any")(lambda call: {})
server.run()
"""


@pytest.mark.parametrize("data", [{}, {"data": "unsent"}, {"data": {"retry": 3}}], ids=str)
async def test_a_server_s_own_error_is_never_taken_for_the_end_of_its_connection(
    data: dict[str, Any], hubs: HubFactory, tmp_path: Path
) -> None:
    script = tmp_path / "refuses.py"
    script.write_text(REFUSES)
    spec = ServerSpec(name="refuses", command=sys.executable, args=[str(script), str(FIXTURES)])
    async with hubs.task(spec) as task:
        for _ in range(2):
            result = await task.call("refuses", "any", data)
            error = {"code": -32000, "message": "try later", "data": data.get("data")}
            assert result.raw["_meta"][ERROR_META] == error
        assert [slot.starts for slot in task.statistics().slots] == [1]
