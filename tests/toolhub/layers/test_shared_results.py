"""Results of read-only tools on disk: shared by tasks, attempts and hubs, and never a reason for a call to fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolhub import Hub, parse_config
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.layers.result_store import FILE, ResultStore
from toolhub.model import Json

pytestmark = pytest.mark.anyio

SEARCH = {"command": "unused", "stateful": False, "tools": {"policy": {"search": {"read_only": True}}}}


class Web:
    """A server whose every answer is another one."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_failing = False
        self.more = ""
        self.server = MemoryServer(search=self.search, post=self.search)

    async def search(self, arguments: Mapping[str, Any]) -> Json:
        self.asked += 1
        return text_result(f"answer {self.asked}{self.more}", is_error=self.is_failing)


def a_hub(folder: Path, web: Web, *, server: Json | None = None, **sharing: Any) -> Hub:
    servers = {"web": SEARCH | (server or {})}
    hub = {"state_dir": str(folder), "shared_results": {"scope": "hub"} | sharing}
    return Hub(parse_config({"hub": hub, "servers": servers}), open_channel=web.server.open)


async def ask(hub: Hub, q: str = "otters", *, tool: str = "search", run: str = "") -> str:
    async with hub.task(run=run) as task:
        return (await task.call("web", tool, {"q": q})).text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_another_task_and_another_hub_get_the_same_result(folder: Path):
    web = Web()
    for _ in range(2):
        async with a_hub(folder, web) as hub:
            assert [await ask(hub), await ask(hub)] == ["answer 1", "answer 1"]
    async with a_hub(folder, web) as hub, hub.task() as task:
        await task.call("web", "search", {"q": "otters"})
        await task.call("web", "search", {"q": "seals"})
        assert task.statistics().shared_results == 1
        told = hub.statistics().shared_results
        assert told is not None and (told.hits, told.misses) == (1, 1)
    assert web.asked == 2


async def test_only_read_only_tools_of_servers_without_state_are_shared(folder: Path):
    web = Web()
    async with a_hub(folder, web) as hub:
        assert [await ask(hub, tool="post"), await ask(hub, tool="post")] == ["answer 1", "answer 2"]
    async with a_hub(folder, web, server={"stateful": True}) as hub:
        assert [await ask(hub), await ask(hub)] == ["answer 3", "answer 4"]


async def test_errors_are_not_shared(folder: Path):
    web = Web()
    web.is_failing = True
    async with a_hub(folder, web) as hub:
        await ask(hub)
        web.is_failing = False
        assert [await ask(hub), await ask(hub)] == ["answer 2", "answer 2"]


async def test_with_the_scope_of_a_run_other_runs_ask_again(folder: Path):
    web = Web()
    async with a_hub(folder, web, scope="run") as hub:
        found = [await ask(hub, run=run) for run in ("a", "a", "b", "", "")]
    assert found == ["answer 1", "answer 1", "answer 2", "answer 3", "answer 4"]


async def test_another_environment_of_a_server_is_another_server(folder: Path):
    web = Web()
    for region in ("north", "south"):
        async with a_hub(folder, web, server={"env": {"REGION": region}}) as hub:
            await ask(hub)
    assert web.asked == 2


async def test_a_result_with_a_secret_of_its_server_is_not_kept(folder: Path):
    web = Web()
    async with a_hub(folder, web, server={"env": {"API_KEY": "answer 1"}}) as hub:
        assert [await ask(hub), await ask(hub), await ask(hub)] == ["answer 1", "answer 2", "answer 2"]
    for path in folder.glob(f"{FILE}*"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"answer 1" not in path.read_bytes()


async def test_results_grow_old(folder: Path):
    now = 1000.0
    store = ResultStore(folder, max_bytes=1 << 20, clock=lambda: now)
    await store.put("key", {"n": 1}, secrets=frozenset())
    now += 50
    assert await store.get("key", ttl=60) == {"n": 1}
    assert await store.get("key", ttl=40) is None
    now -= 100  # the clock was set back, so the age is not known
    assert await store.get("key", ttl=60) is None
    await store.aclose()


async def test_the_least_recently_used_make_room(folder: Path):
    now = 0.0
    store = ResultStore(folder, max_bytes=100_000, clock=lambda: now)
    for number in range(40):
        now += 100
        await store.put(str(number), {"text": "x" * 5000}, secrets=frozenset())
        assert await store.get("0", ttl=1e9) is not None
    kept = [number for number in range(40) if await store.get(str(number), ttl=1e9) is not None]
    assert kept[0] == 0 and kept[1:] == list(range(kept[1], 40)) and 10 <= len(kept) <= 20
    await store.put("large", {"text": "x" * 50_000}, secrets=frozenset())
    assert await store.get("large", ttl=1e9) is None
    await store.aclose()


async def test_hubs_share_one_file_at_once(folder: Path):
    web = Web()
    async with a_hub(folder, web) as one, a_hub(folder, web) as other, anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(ask, (one, other)[number % 2], f"q{number % 10}")
    async with a_hub(folder, web) as hub:
        asked = web.asked
        for number in range(10):
            await ask(hub, f"q{number}")
    assert web.asked == asked


@pytest.mark.parametrize("damage", ["garbage", "folder", "other format", "a row"])
async def test_a_file_that_cannot_be_used_fails_no_call(folder: Path, damage: str, caplog: pytest.LogCaptureFixture):
    web = Web()
    async with a_hub(folder, web) as hub:
        await ask(hub)
    path = folder / FILE
    if damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        change = "PRAGMA user_version = 7" if damage == "other format" else "UPDATE results SET result = '['"
        with sqlite3.connect(path) as db:
            db.execute(change)
        db.close()
    async with a_hub(folder, web) as hub:
        assert [await ask(hub), await ask(hub)] == ["answer 2", "answer 3"]
        told = hub.statistics().shared_results
        assert told is not None and not told.is_on
    assert caplog.text.count("results are not shared any more") == 1


async def test_a_full_disk_fails_no_call(folder: Path, caplog: pytest.LogCaptureFixture):
    web = Web()
    async with a_hub(folder, web) as hub:
        await ask(hub, "first")
        store = hub._shared.shared_results.store  # nothing public can fill a disk
        store._connection.execute("PRAGMA max_page_count = 1")
        web.more = "!" * 100_000
        for number in range(3):
            await ask(hub, f"question {number}")
    assert caplog.text.count("database or disk is full") == 1


async def test_a_file_that_another_program_locks_is_a_miss(folder: Path):
    web = Web()
    async with a_hub(folder, web) as hub:
        await ask(hub)
        with sqlite3.connect(folder / FILE, isolation_level=None) as db:
            db.execute("BEGIN EXCLUSIVE")
            assert await ask(hub, "seals") == "answer 2"
            db.execute("ROLLBACK")
        db.close()
        told = hub.statistics().shared_results
        assert told is not None and told.is_on
        assert await ask(hub) == "answer 1"
