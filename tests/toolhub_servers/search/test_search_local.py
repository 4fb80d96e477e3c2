"""Searching a folder: what is found and shown, and that the index follows the folder."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread
from toolhub_servers.search import search_and_scrape_webpage
from toolhub_servers.search.backends.local import index as index_module
from toolhub_servers.search.backends.local.backend import Local, open_local
from toolhub_servers.search.backends.local.index import Index, Progress
from toolhub_servers.search.model import Hit, Query, Results, SearchFailed
from toolhub_servers.search.registry import settings_model

from tests.toolhub_servers.search.search_stage import calling, told_json
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio

HOUR, DAY = 3600, 86400
NOW = datetime(2026, 3, 8, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "docs" / "deep").mkdir(parents=True)
    folder = folder.parent
    (folder / "cats.md").write_text(
        "# All about cats\n\nA cat sat on the mat. " + "filler " * 200 + "the whiskers grow"
    )
    (folder / "dogs.txt").write_text("Dogs chase cats.")
    (folder / "deep" / "page one.html").write_text("<title>Birds</title><p>Birds fly &amp; sing</p>")
    (folder / "wiki.jsonl").write_text(
        '{"title": "Fish", "text": "Fish swim", "url": "https://example.org/fish", "date": "2026-01-31"}\n'
        '{"title": "Frogs", "text": "Frogs jump"}\n'
    )
    (folder / "image.png").write_bytes(b"cat")
    (folder / ".hidden.md").write_text("cat")
    return folder


def settings(folder: Path, **options: Any) -> Any:
    """The settings of the search servers; `local` is there because the backend is."""
    local = {"folder": str(folder), "cache_dir": str(folder.parent / "cache"), "refresh_s": 0, **options}
    return settings_model().model_validate({"backends": ["local"], "local": local})


@asynccontextmanager
async def searching(folder: Path, **options: Any) -> AsyncIterator[Local]:
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            chosen = settings(folder, **options)
            yield await open_local(chosen.local, chosen, resources)


async def titles(local: Local, q: str, **query: Any) -> list[str]:
    return [hit.title for hit in (await local.search(Query(q, **query))).hits]


async def test_a_search_finds_documents_of_all_kinds(folder: Path) -> None:
    async with searching(folder) as local:
        assert sorted(await titles(local, "cat")) == ["All about cats", "dogs"]
        assert await titles(local, "birds sing") == ["Birds"]
        assert await titles(local, "jump") == ["Frogs"]
        assert await titles(local, "nothing") == []


async def test_a_title_counts_more_than_a_text(folder: Path) -> None:
    (folder / "a.md").write_text("# Whales\n\nabout big animals")
    (folder / "b.md").write_text("# Animals\n\nabout big whales")
    async with searching(folder) as local:
        assert await titles(local, "whales") == ["Whales", "Animals"]
        assert await titles(local, "animals") == ["Animals", "Whales"]


async def test_a_hit_has_all_that_is_known_of_it(folder: Path) -> None:
    async with searching(folder) as local:
        results = await local.search(Query("fish", num=3))
    assert results == Results(
        "local",
        (Hit("Fish", "https://example.org/fish", "Fish swim", "2026-01-31", 1),),
        {"q": "fish", "gl": "us", "hl": "en", "type": "search", "num": 3, "engine": "local"},
    )


async def test_a_snippet_is_from_where_the_words_are(folder: Path) -> None:
    async with searching(folder) as local:
        (hit,) = (await local.search(Query("whiskers"))).hits
    assert hit.snippet.endswith("the whiskers grow") and hit.snippet.startswith("... filler")
    assert len(hit.snippet) < 500


async def test_links_lead_to_the_file_or_to_where_the_folder_is_published(folder: Path) -> None:
    async with searching(folder) as local:
        (bird,) = (await local.search(Query("birds"))).hits
        (frog,) = (await local.search(Query("frogs"))).hits
    assert bird.link == (folder / "deep" / "page one.html").as_uri()
    assert frog.link == (folder / "wiki.jsonl").as_uri() + "#2"
    async with searching(folder, base_url="https://docs.example/x/") as local:
        (bird,) = (await local.search(Query("birds"))).hits
        (fish,) = (await local.search(Query("fish"))).hits
    assert bird.link == "https://docs.example/x/deep/page%20one.html"
    assert fish.link == "https://example.org/fish"


async def test_results_have_pages(folder: Path) -> None:
    for number in range(25):
        (folder / f"n{number:02}.txt").write_text("same words")
    async with searching(folder) as local:
        pages = [await titles(local, "words", num=10, page=page) for page in (None, 1, 2, 3, 4)]
        assert pages[0] == pages[1]
        assert [len(page) for page in pages] == [10, 10, 10, 5, 0]
        assert len({title for page in pages[1:] for title in page}) == 25
        assert await titles(local, "words", num=-1, page=-5) == pages[1][:1]
        assert await titles(local, "words", page=10**30) == []


@pytest.mark.parametrize(
    ("tbs", "found"),
    [
        ("qdr:h", ["minute"]),
        ("qdr:d", ["hours", "minute"]),
        ("qdr:w", ["days", "hours", "minute"]),
        ("qdr:m", ["days", "hours", "minute", "weeks"]),
        ("qdr:y", ["days", "hours", "minute", "months", "weeks"]),
        ("cdr:1", ["days", "hours", "minute", "months", "weeks", "years"]),
    ],
)
async def test_only_files_changed_in_the_span_that_is_asked_for_are_found(
    tmp_path: Path, tbs: str, found: list[str]
) -> None:
    ages = {
        "minute": 60,
        "hours": 5 * HOUR,
        "days": 3 * DAY,
        "weeks": 20 * DAY,
        "months": 200 * DAY,
        "years": 800 * DAY,
    }
    for name, age in ages.items():
        (tmp_path / f"{name}.txt").write_text("news")
        os.utime(tmp_path / f"{name}.txt", (NOW - age, NOW - age))
    async with searching(tmp_path, cache_dir=str(tmp_path / ".cache")) as local:
        dated = Local(local._library, settings(tmp_path).local, now=lambda: datetime.fromtimestamp(NOW, UTC))
        assert sorted(await titles(dated, "news", tbs=tbs)) == found


async def test_the_date_that_a_document_names_counts_more_than_that_of_its_file(tmp_path: Path) -> None:
    lines = [
        '{"title": "new", "text": "news", "date": "2026-03-07"}',
        '{"title": "exact", "text": "news", "date": "2026-03-01T00:00:00Z"}',
        '{"title": "old", "text": "news", "date": "2026-02-28T23:00:00Z"}',
        '{"title": "in words", "text": "news", "date": "March 7, 1926"}',
        '{"title": "undated", "text": "news"}',
    ]
    (tmp_path / "wiki.jsonl").write_text("\n".join(lines))
    os.utime(tmp_path / "wiki.jsonl", (NOW, NOW))
    async with searching(tmp_path, cache_dir=str(tmp_path / ".cache")) as local:
        dated = Local(local._library, settings(tmp_path).local, now=lambda: datetime.fromtimestamp(NOW, UTC))
        assert sorted(await titles(dated, "news", tbs="qdr:w")) == ["exact", "in words", "new", "undated"]
        assert len(await titles(dated, "news")) == 5


async def test_new_changed_and_removed_files_are_noticed(folder: Path) -> None:
    async with searching(folder) as local:
        assert await titles(local, "cows") == []
        (folder / "new.txt").write_text("cows")
        assert await titles(local, "cows") == ["new"]
        (folder / "new.txt").write_text("sheep now")
        assert await titles(local, "cows") == []
        assert await titles(local, "sheep") == ["new"]
        (folder / "new.txt").unlink()
        assert await titles(local, "sheep") == []
        (folder / "wiki.jsonl").unlink()
        assert await titles(local, "fish frogs") == []
        assert await titles(local, "birds") == ["Birds"]


async def test_a_file_of_the_same_size_is_read_again_when_its_time_differs(folder: Path) -> None:
    async with searching(folder) as local:
        (folder / "a.txt").write_text("aaaa")
        assert await titles(local, "aaaa") == ["a"]
        (folder / "a.txt").write_text("bbbb")
        os.utime(folder / "a.txt", ns=(1, 1))
        assert await titles(local, "bbbb") == ["a"]


async def test_changes_are_not_looked_for_more_often_than_configured(folder: Path) -> None:
    async with searching(folder, refresh_s=3600) as local:
        assert await titles(local, "cows") == []
        (folder / "cows.txt").write_text("cows")
        assert await titles(local, "cows") == []


async def test_an_index_is_kept_and_only_changes_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with searching(folder) as local:
        assert await titles(local, "birds") == ["Birds"]
    read: list[str] = []
    original = Index._read

    def noting(self: Index, database: Any, path: str, stamp: Any, progress: Progress) -> None:
        read.append(path)
        original(self, database, path, stamp, progress)

    monkeypatch.setattr(Index, "_read", noting)
    (folder / "cows.txt").write_text("cows")
    async with searching(folder) as local:
        assert await titles(local, "birds cows") == ["cows", "Birds"]
    assert read == ["cows.txt"]


async def test_a_file_that_cannot_be_read_is_skipped_and_counted(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    async with searching(folder) as local:
        assert await titles(local, "birds") == ["Birds"]
        statistics = local._library.statistics()
    assert (statistics.files_skipped, statistics.files_total, statistics.is_built) == (1, 5, True)


@pytest.mark.parametrize("damage", [b"this is no database" * 100, b""])
async def test_a_file_that_is_no_index_is_built_anew(folder: Path, damage: bytes) -> None:
    async with searching(folder) as local:
        assert await titles(local, "birds") == ["Birds"]
        file = local._library.index.file
    file.write_bytes(damage)
    async with searching(folder) as local:
        assert await titles(local, "birds") == ["Birds"]


async def test_an_index_of_another_version_is_built_anew(folder: Path) -> None:
    async with searching(folder) as local:
        await titles(local, "birds")
        file = local._library.index.file
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 77")
    async with searching(folder) as local:
        assert await titles(local, "birds") == ["Birds"]


async def test_a_folder_that_is_gone_is_a_failure_and_does_not_empty_the_index(folder: Path) -> None:
    async with searching(folder) as local:
        await titles(local, "birds")
    hidden = folder.rename(folder.with_name("elsewhere"))
    async with searching(folder) as local:
        with pytest.raises(SearchFailed, match="cannot be searched: FileNotFoundError"):
            await local.search(Query("birds"))
        hidden.rename(folder)
        assert await titles(local, "birds") == ["Birds"]


async def test_a_search_does_not_wait_longer_than_its_patience_for_the_first_index(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refresh ends only when the search has given up, and then the index can be searched."""
    original = Index.refresh
    begun, given_up = anyio.Event(), threading.Event()

    def slow(self: Index, progress: Progress) -> None:
        progress.total = 7
        anyio.from_thread.run_sync(begun.set)
        given_up.wait(20)
        original(self, progress)

    monkeypatch.setattr(Index, "refresh", slow)
    async with searching(folder, patience_s=0.05) as local:
        try:
            await begun.wait()
            with pytest.raises(SearchFailed, match="still being built, 0 of 7 files are done; try again later"):
                await local.search(Query("birds"))
        finally:
            given_up.set()
        while not local._library.statistics().is_built:
            await anyio.lowlevel.checkpoint()
        assert await titles(local, "birds") == ["Birds"]


async def test_an_index_that_is_being_built_ends_with_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def endless(self: Index, progress: Progress) -> None:
        stopped.append(progress.stop.wait(20))

    monkeypatch.setattr(Index, "refresh", endless)
    async with searching(folder, patience_s=0.05) as local:
        with pytest.raises(SearchFailed):
            await local.search(Query("birds"))
    assert stopped == [True]


async def test_two_thousand_documents_are_indexed_and_searched_by_many_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(2000):
        (folder / f"d{number}.txt").write_text(f"common words and number{number} " + "text " * 50)
    async with searching(folder, refresh_s=3600) as local:
        found: dict[int, list[str]] = {}

        async def search(number: int) -> None:
            found[number] = await titles(local, f"number{number}")

        async with anyio.create_task_group() as tasks:
            for number in range(0, 2000, 40):
                tasks.start_soon(search, number)
        assert found == {number: [f"d{number}"] for number in range(0, 2000, 40)}
        assert len(await titles(local, "common", num=100)) == 100


async def test_searches_go_on_while_files_change(folder: Path) -> None:
    async with searching(folder) as local:
        await titles(local, "birds")
        is_over = False

        async def change() -> None:
            nonlocal is_over
            for number in range(30):
                await to_thread.run_sync((folder / "cows.txt").write_text, f"cows {number} " + "x" * number)
                assert await titles(local, f"{number}") == ["cows"]
            is_over = True

        async def search() -> None:
            while not is_over:
                assert await titles(local, "birds") == ["Birds"]

        async with anyio.create_task_group() as tasks:
            for task in (change, search, search, search):
                tasks.start_soon(task)


def test_a_search_sees_one_state_of_the_index(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is removed from the index after the search has found it and before it is shown."""
    index = Index(folder, tmp_path / "index.sqlite3")
    index.refresh(Progress())
    original = index_module._found

    def late(database: sqlite3.Connection, match: str, row: int) -> Any:
        (folder / "dogs.txt").unlink()
        index.refresh(Progress())
        return original(database, match, row)

    monkeypatch.setattr(index_module, "_found", late)
    assert [found.title for found in index.find('"dogs"', limit=10)] == ["dogs"]
    assert index.find('"dogs"', limit=10) == []


def test_two_processes_may_build_one_index_at_once(folder: Path, tmp_path: Path) -> None:
    """As far as SQLite is concerned connections in two threads are two processes."""

    async def both() -> None:
        indexes = [Index(folder, tmp_path / "index.sqlite3") for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for index in indexes:
                tasks.start_soon(to_thread.run_sync, index.refresh, Progress())
        assert [found.title for found in indexes[0].find('"bird"', limit=10)] == ["Birds"]

    anyio.run(both)


async def test_all_servers_of_a_hub_share_one_index(folder: Path) -> None:
    options = settings(folder).model_dump(include={"backends", "local"})
    async with open_shared_resources() as resources:
        for task in ("one", "two"):
            server = search_and_scrape_webpage.create_server(
                context=BuiltinContext(task, resources=resources), **options
            )
            async with calling(server) as client:
                answer = await told_json(client, "google_search", q='"birds fly"')
                assert [hit["title"] for hit in answer["organic"]] == ["Birds"]
        (library,) = (key for key in resources.statistics() if key.startswith("search index"))
        assert resources.statistics()[library]["searches"] == 2


async def test_the_index_is_begun_when_the_server_starts(folder: Path) -> None:
    built: Callable[[], bool]
    options = settings(folder).model_dump(include={"backends", "local"})
    async with open_shared_resources() as resources:
        async with calling(
            search_and_scrape_webpage.create_server(context=BuiltinContext("t", resources=resources), **options)
        ):
            built = lambda: any(of.get("is_built") for of in resources.statistics().values())  # noqa: E731
            while not built():
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("q", ["AND", '"', "a OR", "NEAR(", "*", "(", "x:y", "'; DROP TABLE files; --", "\u0000", "🐈"])
async def test_an_odd_query_finds_nothing_rather_than_failing(folder: Path, q: str) -> None:
    async with searching(folder) as local:
        assert await titles(local, q) in (
            [],
            ["All about cats"],
            ["All about cats", "dogs"],
            ["dogs", "All about cats"],
        )
