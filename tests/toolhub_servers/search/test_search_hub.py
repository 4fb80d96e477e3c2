"""The search servers inside a hub: options from the config, one search for many tasks, problems that stay local."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.toolhub_servers.search.search_standins import Answer, StandIn
from toolhub import Hub, HubTask, parse_config
from toolhub.errors import StartError

pytestmark = pytest.mark.anyio

BUILTIN = "{}"


def config_for(google: StandIn, folder: Path, **search: Any) -> Any:
    serper = {"api_key": "${SERPER_API_KEY}", "base_url": google.url}
    local = {"folder": str(folder), "cache_dir": str(folder.parent / "cache")}
    return parse_config(
        {
            "servers": {
                "search_and_scrape_webpage": {
                    "builtin": BUILTIN.format("search_and_scrape_webpage"),
                    "options": {"backends": ["serper", "local"], "serper": serper, "local": local, **search},
                },
                "tool-google-search": {
                    "builtin": BUILTIN.format("google_search"),
                    "options": {"serper": serper, "remove_answer_box": True},
                },
                "tool-sogou-search": {"builtin": BUILTIN.format("sogou_search")},
            }
        },
        environ={"SERPER_API_KEY": "hub-key"},
    )


@asynccontextmanager
async def running(config: Any) -> AsyncIterator[Hub]:
    with anyio.fail_after(60):
        async with Hub(config) as hub:
            yield hub


async def told(task: HubTask, server: str, tool: str, **arguments: Any) -> str:
    result = await task.call(server, tool, arguments)
    assert not result.is_error, result.text
    return str(result.text)


async def searched(task: HubTask, server: str = "search_and_scrape_webpage", **arguments: Any) -> Any:
    return json.loads(await told(task, server, "google_search", **arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "docs").mkdir()
    (folder / "cats.md").write_text("# Cats\n\nA cat sat on the mat.")
    return folder


async def test_the_key_comes_from_the_config_and_the_query_is_asked_once_for_all_tasks(
    google: StandIn, folder: Path
) -> None:
    async with running(config_for(google, folder)) as hub, hub.task("one") as one, hub.task("two") as two:
        assert await searched(one, q="apple") == await searched(two, q="apple")
    (request,) = google.requests
    assert request.headers["x-api-key"] == "hub-key"


async def test_a_folder_answers_when_the_service_does_not(google: StandIn, folder: Path) -> None:
    google.reply = lambda _: Answer(status=403)
    async with running(config_for(google, folder)) as hub, hub.task("one") as task:
        answer = await searched(task, q="cat")
    assert [hit["link"] for hit in answer["organic"]] == [(folder / "cats.md").as_uri()]


async def test_all_three_servers_work_beside_each_other(google: StandIn, folder: Path) -> None:
    async with running(config_for(google, folder)) as hub, hub.task("one") as task:
        answer = await searched(task, "tool-google-search", q="apple")
        assert "knowledgeGraph" in answer and "answerBox" not in answer
        missing = await told(task, "tool-sogou-search", "sogou_search", Query="a")
        assert missing.startswith("[ERROR]: TENCENTCLOUD_SECRET_ID or ")


async def test_a_missing_key_fails_that_server_with_the_way_out_and_no_other(google: StandIn, folder: Path) -> None:
    async with running(config_for(google, folder, serper={})) as hub, hub.task("one") as task:
        with pytest.raises(StartError, match=r"needs the option serper\.api_key.*environment variable SERPER_API_KEY"):
            await task.call("search_and_scrape_webpage", "google_search", {"q": "a"})
        assert (await searched(task, "tool-google-search", q="apple"))["organic"]


async def test_searches_of_many_tasks_at_once_are_one(google: StandIn, folder: Path) -> None:
    async with running(config_for(google, folder)) as hub:

        async def search(name: str) -> None:
            async with hub.task(name) as task:
                assert (await searched(task, q="apple"))["organic"]

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(search, f"task-{number}")
    assert len(google.requests) == 1
