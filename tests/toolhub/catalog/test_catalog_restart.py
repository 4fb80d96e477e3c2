"""Two hubs one after the other with one state directory: what the second knows before any server is up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from real_processes import FIXTURES, HubFactory, eventually, fixture

from toolhub import Hub, HubTask, ServerSpec, parse_config
from toolhub.cli.doctor import examine

pytestmark = pytest.mark.anyio

# Offers what stands in a file that its command line does not name.
SCRIPT = f"""
import json, os, sys
sys.path.insert(0, {str(FIXTURES)!r})
from minimal import Server, text

server = Server("offers")
for name in json.load(open(os.path.join(os.path.dirname(__file__), "offered", "tools.json"))):
    server.tool(name)(lambda call: text(os.environ.get("TASK", "")))
server.run()
"""


@pytest.fixture
def anyio_backend() -> str:
    """Real processes: on the event loop that the hub uses."""
    return "asyncio"


@pytest.fixture
def hubs(tmp_path: Path) -> HubFactory:
    return HubFactory(tmp_path / "state")


class Offers:
    """A server in a file, whose tools can be changed while it is down."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "offers.py"
        self.script.write_text(SCRIPT)
        self._tools = folder / "offered" / "tools.json"
        self._tools.parent.mkdir()
        self.offer("one")

    def offer(self, *names: str) -> None:
        self._tools.write_text(json.dumps(names))

    def spec(self, **fields: Any) -> ServerSpec:
        base = fixture("offers", **fields)
        return base.model_copy(update={"args": ["-S", str(self.script)]})


@pytest.fixture
def offers(tmp_path: Path) -> Offers:
    return Offers(tmp_path)


async def names(task: HubTask, **how: bool) -> list[str]:
    return [tool.name for tool in await task.tools("offers", **how)]


async def has_verified(hub: Hub, task: HubTask) -> None:
    """Wait until the server that is up has said what it offers."""
    server = task._servers["offers"]
    await eventually(lambda: not hub._shared.catalog.is_unverified(server.key, server.spec))


async def learn(hubs: HubFactory, spec: ServerSpec) -> None:
    """The life of a hub in which somebody lists the tools."""
    async with hubs.task(spec) as task:
        await task.tools()


async def test_a_second_hub_lists_the_tools_without_a_start(hubs: HubFactory, offers: Offers) -> None:
    await learn(hubs, offers.spec())
    with anyio.fail_after(20):
        async with hubs(offers.spec()) as hub, hub.task() as task:
            assert await names(task) == ["one"]
            assert hub.statistics().starts == 0


async def test_what_the_first_start_confirms_is_no_news(hubs: HubFactory, offers: Offers) -> None:
    await learn(hubs, offers.spec())
    heard: list[str] = []
    with anyio.fail_after(20):
        async with hubs(offers.spec()) as hub, hub.task() as task:
            hub.on_tools_changed(heard.append)
            await names(task)
            await task.call("offers", "one")
            await has_verified(hub, task)
            assert await names(task) == ["one"]
            assert heard == []


async def test_a_server_that_offers_something_else_by_now_is_announced(hubs: HubFactory, offers: Offers) -> None:
    await learn(hubs, offers.spec())
    offers.offer("one", "two")
    heard: list[str] = []
    with anyio.fail_after(20):
        async with hubs(offers.spec()) as hub, hub.task() as task:
            hub.on_tools_changed(heard.append)
            assert await names(task) == ["one"]
            await task.call("offers", "one")
            await eventually(lambda: heard)
            assert (heard, await names(task)) == (["offers"], ["one", "two"])
        async with hubs(offers.spec()) as hub, hub.task() as task:
            assert await names(task) == ["one", "two"]
            assert hub.statistics().starts == 0


async def test_tools_that_change_while_the_server_runs_are_not_kept(hubs: HubFactory) -> None:
    with anyio.fail_after(20):
        await learn(hubs, fixture("echo"))
        async with hubs(fixture("echo")) as hub, hub.task() as task:
            await task.tools()
            await task.call("echo", "add_tool", {"name": "later"})
            await eventually(lambda: not list((hubs.state_dir / "catalog").iterdir()))
            assert "later" in [tool.name for tool in await task.tools()]
        async with hubs(fixture("echo")) as hub, hub.task() as task:
            assert "later" not in [tool.name for tool in await task.tools()]
            assert hub.statistics().starts == 1


async def test_tasks_whose_environment_names_them_share_what_is_kept(hubs: HubFactory, offers: Offers) -> None:
    spec = offers.spec(env={"TASK": "${task.id}"})
    await learn(hubs, spec)
    with anyio.fail_after(20):
        async with hubs(spec) as hub, hub.task("a") as a, hub.task("b") as b:
            assert await names(a) == await names(b) == ["one"]
            assert hub.statistics().starts == 0
            assert [(await task.call("offers", "one")).text for task in (a, b)] == ["a", "b"]


@pytest.mark.parametrize("other", [{"env": {"MODE": "x"}}, {"cwd": "/"}, {"name": "another"}])
async def test_servers_that_differ_know_nothing_of_each_other(
    hubs: HubFactory, offers: Offers, other: dict[str, Any]
) -> None:
    await learn(hubs, offers.spec())
    offers.offer("two")
    with anyio.fail_after(20):
        async with hubs(offers.spec(**other)) as hub, hub.task() as task:
            assert [tool.name for tool in await task.tools()] == ["two"]
            assert hub.statistics().starts == 1


async def test_an_edited_script_is_asked_afresh(hubs: HubFactory, offers: Offers) -> None:
    await learn(hubs, offers.spec())
    offers.script.write_text(SCRIPT.replace('"tools.json"))):', '"tools.json"))) + ["new"]:'))
    async with hubs.task(offers.spec()) as task:
        assert await names(task) == ["one", "new"]


async def test_who_wants_to_know_for_sure_has_the_server_started(hubs: HubFactory, offers: Offers) -> None:
    await learn(hubs, offers.spec())
    offers.offer("two")
    async with hubs.task(offers.spec()) as task:
        assert await names(task, fresh=True) == ["two"]


async def test_the_doctor_starts_every_server_however_much_is_kept(tmp_path: Path, offers: Offers) -> None:
    spec = offers.spec()
    entry = {"command": spec.command, "args": spec.args}
    config = parse_config({"hub": {"state_dir": str(tmp_path / "state")}, "servers": {"offers": entry}})
    with anyio.fail_after(60):
        for _ in range(2):
            (report,), _ = await examine(config)
            assert report.ok and report.tools == 1 and report.start_seconds is not None
        offers.script.unlink()
        (report,), _ = await examine(config)
        assert not report.ok


async def test_an_unwritable_state_directory_fails_nothing(tmp_path: Path, offers: Offers) -> None:
    (tmp_path / "file").write_text("no directory")
    async with HubFactory(tmp_path / "file" / "state").task(offers.spec()) as task:
        assert await names(task) == ["one"]
        assert not (await task.call("offers", "one")).is_error
