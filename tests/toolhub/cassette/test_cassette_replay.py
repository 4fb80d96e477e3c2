"""A replay gives what was recorded, and nothing else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from cassettes import READS, a_notebook, a_taping_hub

from toolhub import CallTimeout, ConfigError, SessionLost
from toolhub.cassette.recording import read_recording
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.errors import NotRecorded
from toolhub.model import Json

pytestmark = pytest.mark.anyio


async def record(folder: Path, *calls: tuple[str, Json], task: str = "t1", **more: Any) -> list[Json]:
    """Record calls of the server `notes`; return their results."""
    async with a_taping_hub(folder, "record", a_notebook(), **more) as hub, hub.task(task) as tools:
        return [(await tools.call("notes", tool, arguments)).raw for tool, arguments in calls]


async def test_a_replay_gives_equal_results_twice_and_starts_no_server(tmp_path: Path):
    calls = [("write", {"note": "a"}), ("search", {"q": "x"}), ("search", {"q": "x"}), ("read", {})]
    recorded = await record(tmp_path / "tape", *calls)
    for _ in range(2):
        server = a_notebook()
        async with a_taping_hub(tmp_path / "tape", "replay", server) as hub, hub.task("t1") as tools:
            replayed = [(await tools.call("notes", tool, arguments)).raw for tool, arguments in calls]
            assert json.dumps(replayed) == json.dumps(recorded)
            told = hub.statistics()
            assert told.cassette is not None and (told.cassette.replayed, told.cassette.missed) == (4, 0)
        assert server.opened == 0


async def test_a_read_after_another_change_is_no_hit(tmp_path: Path):
    await record(tmp_path, ("write", {"note": "a"}), ("read", {}))
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub, hub.task("t1") as tools:
        with pytest.raises(NotRecorded, match="At place 1 of these calls there was call 1, write .*, and no call now"):
            await tools.call("notes", "read")
        await tools.call("notes", "write", {"note": "a"})
        assert (await tools.call("notes", "read")).text == "['a']"


async def test_a_stateless_server_needs_no_history(tmp_path: Path):
    servers = {"notes": {"command": "unused", "stateful": False}}
    await record(tmp_path, ("write", {"note": "a"}), ("write", {"note": "b"}), servers=servers)
    async with a_taping_hub(tmp_path, "replay", a_notebook(), servers=servers) as hub, hub.task("t1") as tools:
        assert (await tools.call("notes", "write", {"note": "b"})).text == "2 notes"


async def test_a_miss_shows_the_nearest_call_and_what_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    await record(tmp_path, ("search", {"q": "otters in spring", "n": 3}), ("search", {"q": "lighthouses", "n": 3}))
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub, hub.task("t1") as tools:
        with pytest.raises(NotRecorded) as missed:
            await tools.call("notes", "search", {"q": "otters in summer", "n": 3})
        assert 'the nearest is call 1, where \'q\' was "otters in spring" and is now "otters in summer"' in str(
            missed.value
        )
        assert (missed.value.sent, missed.value.server, missed.value.tool) == ("no", "notes", "search")
        assert "has no recording of notes/search" in caplog.text
        with pytest.raises(NotRecorded, match="the calls were of: search"):
            await tools.call("notes", "write", {"note": "a"})


async def test_equal_reads_get_their_answers_in_order_and_then_the_last(tmp_path: Path):
    await record(tmp_path, ("search", {"q": "x"}), ("search", {"q": "x"}))
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub, hub.task("t1") as tools:
        texts = [(await tools.call("notes", "search", {"q": "x"})).text for _ in range(3)]
    assert texts == ["result 1 for x", "result 2 for x", "result 2 for x"]


async def test_a_task_with_a_new_id_takes_the_recording_of_its_first_call(tmp_path: Path):
    for number, question in enumerate(("x", "y", "y"), 1):
        await record(tmp_path, ("search", {"q": question}), ("write", {"note": str(number)}), task=f"t{number}")
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub:
        for number, question in ((2, "y"), (1, "x"), (3, "y")):
            async with hub.task() as tools:
                await tools.call("notes", "search", {"q": question})
                await tools.call("notes", "write", {"note": str(number)})


async def test_a_second_task_of_one_id_has_a_recording_of_its_own(tmp_path: Path):
    for note in ("first", "second"):
        await record(tmp_path, ("write", {"note": note}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t1.jsonl.gz", "t1~2.jsonl.gz"]
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub:
        for note in ("first", "second"):
            async with hub.task("t1") as tools:
                await tools.call("notes", "write", {"note": note})


async def test_errors_are_replayed_as_they_were(tmp_path: Path):
    async def die(arguments: Mapping[str, Any]) -> Json:
        server.die()
        await anyio.sleep_forever()
        return text_result("never")

    async def hang(arguments: Mapping[str, Any]) -> Json:
        await anyio.sleep_forever()
        return text_result("never")

    server = MemoryServer(die=die, hang=hang)
    found = []
    for mode in ("record", "replay"):
        async with a_taping_hub(tmp_path, mode, server) as hub, hub.task("t1") as tools:
            with pytest.raises(SessionLost) as lost:
                await tools.call("notes", "die")
            with pytest.raises(CallTimeout) as late:
                await tools.call("notes", "hang", timeout=0.05)
            found.append([(str(exc), vars(exc)) for exc in (lost.value, late.value)])
    assert found[0] == found[1]
    assert lost.value.state_lost and lost.value.sent == "maybe"


async def test_a_cancelled_call_waits_for_its_caller_again(tmp_path: Path):
    entered = anyio.Event()

    async def hang(arguments: Mapping[str, Any]) -> Json:
        entered.set()
        await anyio.sleep_forever()
        return text_result("never")

    async with a_taping_hub(tmp_path, "record", MemoryServer(hang=hang)) as hub, hub.task("t1") as tools:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tools.call, "notes", "hang")
            with anyio.fail_after(30):
                await entered.wait()
            tasks.cancel_scope.cancel()
    (exchange,) = read_recording(tmp_path / "t1.jsonl.gz").exchanges
    assert exchange.outcome == "cancelled" and exchange.changes
    async with a_taping_hub(tmp_path, "replay", a_notebook()) as hub, hub.task("t1") as tools:
        with anyio.move_on_after(0.05) as scope:
            await tools.call("notes", "hang")
        assert scope.cancelled_caught


async def test_the_tools_are_listed_without_their_server(tmp_path: Path):
    async with a_taping_hub(tmp_path, "record", a_notebook()) as hub, hub.task("t1") as tools:
        listed = await tools.tools()
    # A hub without servers in its config has the recorded ones.
    async with a_taping_hub(tmp_path, "replay", MemoryServer(), servers={}) as hub, hub.task("t1") as tools:
        assert await tools.tools() == listed != []


async def test_secrets_are_in_no_recording_and_calls_with_them_are_found(tmp_path: Path):
    secret = "sk-0123456789"
    servers = {"notes": {"command": "unused", "env": {"API_KEY": secret}, "tools": READS}}
    await record(tmp_path, ("search", {"q": f"with {secret}", secret: 1234567}), servers=servers)
    (path,) = tmp_path.iterdir()
    assert secret.encode() not in gzip.decompress(path.read_bytes())
    assert (path.stat().st_mode & 0o777, tmp_path.stat().st_mode & 0o022) == (0o600, 0)
    async with a_taping_hub(tmp_path, "replay", a_notebook(), servers=servers) as hub, hub.task("t1") as tools:
        found = await tools.call("notes", "search", {"q": f"with {secret}", secret: 1234567})
        assert found.text == "result 1 for with ***"


async def test_a_secret_inside_json_in_a_text_is_in_no_recording(tmp_path: Path):
    secret = 'sk-"01\\23é456789'
    servers = {"notes": {"command": "unused", "env": {"API_KEY": secret}, "tools": READS}}
    await record(tmp_path, ("search", {"q": json.dumps({"key": secret})}), servers=servers)
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    (exchange,) = (line for line in lines if line.get("tool") == "search")
    assert json.loads(exchange["arguments"]["q"]) == {"key": "***"}


async def test_a_folder_without_recordings_is_an_error_at_the_start(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no recording"):
        async with a_taping_hub(tmp_path, "replay", a_notebook()):
            pass
