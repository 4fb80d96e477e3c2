"""The search servers as users start them alone: `python -m toolhub_servers NAME`, with keys in the environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest
from in_process import run_server
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.toolhub_servers.search.search_stage import told, told_json
from tests.toolhub_servers.search.search_standins import StandIn

PROGRAMS = ["search_and_scrape_webpage", "google_search", "sogou_search"]


def program(name: str, *arguments: str, **env: str) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-m", "toolhub_servers", name, *arguments], env=env)


@pytest.mark.anyio
@pytest.mark.parametrize("name", PROGRAMS[:2])
async def test_a_program_searches_with_the_key_of_the_environment(google: StandIn, name: str) -> None:
    with anyio.fail_after(30):
        async with Client(program(name, SERPER_API_KEY="env-key", SERPER_BASE_URL=google.url)) as client:
            assert (await told_json(client, "google_search", q="apple"))["organic"]
    assert google.requests[0].headers["x-api-key"] == "env-key"


@pytest.mark.anyio
async def test_a_program_takes_its_switches_from_the_environment(google: StandIn) -> None:
    switches = {"REMOVE_SNIPPETS": "true", "REMOVE_KNOWLEDGE_GRAPH": "1", "REMOVE_ANSWER_BOX": "Yes"}
    server = program("google_search", SERPER_API_KEY="k", SERPER_BASE_URL=google.url, **switches)
    with anyio.fail_after(30):
        async with Client(server) as client:
            answer = await told_json(client, "google_search", q="apple")
    assert list(answer) == ["searchParameters", "organic", "peopleAlsoAsk", "relatedSearches", "credits"]
    assert "snippet" not in answer["organic"][0]


@pytest.mark.anyio
async def test_a_program_searches_a_folder_without_any_key(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "cats.txt").write_text("a cat sat")
    arguments = ["--backend", "local", "--folder", str(tmp_path / "docs")]
    server = program("search_and_scrape_webpage", *arguments, XDG_CACHE_HOME=str(tmp_path / "cache"))
    with anyio.fail_after(30):
        async with Client(server) as client:
            answer = await told_json(client, "google_search", q="cat")
    assert [hit["title"] for hit in answer["organic"]] == ["cats"]
    assert list((tmp_path / "cache" / "toolhub" / "search").glob("*.sqlite3"))


@pytest.mark.anyio
async def test_sogou_without_keys_says_so() -> None:
    with anyio.fail_after(30):
        async with Client(program("sogou_search")) as client:
            text = await told(client, "sogou_search", Query="a")
    assert text == (
        "[ERROR]: TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY is not set, sogou_search tool is not available."
    )


@pytest.mark.anyio
async def test_with_the_keys_of_tencent_alone_google_is_not_available() -> None:
    keys = {"TENCENTCLOUD_SECRET_ID": "a", "TENCENTCLOUD_SECRET_KEY": "b"}
    with anyio.fail_after(30):
        async with Client(program("search_and_scrape_webpage", **keys)) as client:
            answer = json.loads(await told(client, "google_search", q="a"))
    assert answer["error"] == "SERPER_API_KEY environment variable not set"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SERPER", "TENCENT", "EXA"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_explains_itself_its_options_and_its_environment(name: str) -> None:
    done = run_server(name, "--help")
    assert done.returncode == 0
    help_text = " ".join(done.stdout.split())
    assert f"python -m toolhub_servers {name}" in help_text and "MCP over stdio" in help_text
    assert "TENCENTCLOUD_SECRET_KEY" in help_text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "search backend 'serper' needs the option serper.api_key"),
        (["--backend", "exa"], "set the environment variable EXA_API_KEY"),
        (["--backend", "local", "--folder", "/no/such/place"], "local.folder '/no/such/place' is not a directory"),
    ],
)
def test_an_unusable_option_ends_the_program_with_one_sentence(arguments: list[str], reason: str) -> None:
    done = run_server("google_search", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
