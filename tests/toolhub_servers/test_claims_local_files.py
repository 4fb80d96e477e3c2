"""Folders of documents end where they end, and a file that is not there is told as such."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from toolhub import Hub, HubTask, parse_config

pytestmark = pytest.mark.anyio


async def asked(task: HubTask, server: str, tool: str, **arguments: str) -> str:
    return str((await task.call(server, tool, arguments)).text)


async def test_a_link_out_of_the_folder_is_not_searched(tmp_path: Path) -> None:
    (folder := tmp_path / "docs").mkdir()
    (folder / "cats.md").write_text("A cat sat on the mat.")
    (tmp_path / "private.txt").write_text("The password of the cat is mouse.")
    (folder / "link.txt").symlink_to(tmp_path / "private.txt")
    local = {"folder": str(folder), "cache_dir": str(tmp_path / "cache")}
    entry = {
        "builtin": "search_and_scrape_webpage",
        "options": {"backends": ["local"], "local": local},
    }
    config = parse_config({"hub": {"state_dir": str(tmp_path / "state")}, "servers": {"search": entry}})
    with anyio.fail_after(60):
        async with Hub(config) as hub, hub.task("t") as task:
            found = json.loads(await asked(task, "search", "google_search", q="cat"))["organic"]
    assert [hit["title"] for hit in found] == ["cats"]


@pytest.mark.parametrize("server", ["reading", "reader"])
async def test_a_file_that_is_not_there_is_said_not_to_exist(server: str, tmp_path: Path) -> None:
    entry = {"builtin": server, "options": {"local_dirs": [str(tmp_path)]}}
    config = parse_config({"hub": {"state_dir": str(tmp_path / "state")}, "servers": {server: entry}})
    with anyio.fail_after(60):
        async with Hub(config) as hub, hub.task("t") as task:
            told = await asked(task, server, "convert_to_markdown", uri=f"file://{tmp_path}/missing.txt")
    assert "missing.txt" in told and ("not exist" in told or "No such file" in told)
