"""The files server: what it serves, and that nothing outside the root can be reached."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client
from server_calls import answer, refusal
from toolhub_servers import files

pytestmark = [pytest.mark.anyio, pytest.mark.quick]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
async def client(root: Path) -> AsyncIterator[Client]:
    async with Client(files.create_server(root)) as client:
        yield client


async def test_a_written_file_can_be_listed_read_and_found(client: Client) -> None:
    await answer(client, "write_file", path="notes/a.txt", text="first\nsecond line\n")
    assert await answer(client, "list_files") == "notes/"
    assert await answer(client, "list_files", path="notes") == "a.txt (18 bytes)"
    assert await answer(client, "read_file", path="notes/a.txt") == "first\nsecond line\n"
    assert await answer(client, "search_files", pattern="*.txt") == "notes/a.txt"
    assert await answer(client, "search_files", pattern="*", text="line") == "notes/a.txt:2: second line"


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "link.txt", "up/outside.txt", "a/../../outside.txt"])
@pytest.mark.parametrize("tool", ["read_file", "list_files", "write_file"])
async def test_no_path_leads_outside_the_root(client: Client, root: Path, tool: str, path: str) -> None:
    (root / "link.txt").symlink_to("../outside.txt")
    (root / "up").symlink_to("..")
    text = {"text": "overwritten"} if tool == "write_file" else {}
    assert "leads outside the served directory" in await refusal(client, tool, path=path, **text)
    assert (root.parent / "outside.txt").read_text() == "secret"


async def test_a_search_does_not_look_through_links_that_lead_outside(client: Client, root: Path) -> None:
    (root / "link.txt").symlink_to("../outside.txt")
    (root / "up").symlink_to("..")
    found = await answer(client, "search_files", pattern="*", text="secret")
    assert found.startswith("[nothing found]\n[1 files not searched")


async def test_a_listing_tells_nothing_about_what_a_link_leads_to(client: Client, root: Path) -> None:
    (root / "link.txt").symlink_to("../outside.txt")
    assert await answer(client, "list_files") == "link.txt (link)"


@pytest.mark.parametrize("path", ["loop", "nul\0byte", "no/such/file", "x" * 5000, "pipe", "."])
async def test_an_unusable_path_is_refused_with_its_name_and_without_waiting(
    client: Client, root: Path, path: str
) -> None:
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    assert repr(path) in await refusal(client, "read_file", path=path)


async def test_a_long_file_is_read_in_parts_that_never_split_a_character(client: Client, root: Path) -> None:
    content = "aé€😀" * 5
    (root / "long.txt").write_text(content, encoding="utf-8")
    size, offset, parts = len(content.encode()), 0, []
    while offset < size:
        part = await answer(client, "read_file", path="long.txt", offset=offset, limit=7)
        text, note = part.rsplit("\n", 1)
        assert note.startswith(f"[bytes {offset} to {offset + len(text.encode())} of {size}")
        offset += len(text.encode())
        parts.append(text)
    assert "".join(parts) == content


async def test_a_binary_file_is_refused(client: Client, root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\0\0")
    assert "'image' is not a text file" in await refusal(client, "read_file", path="image")


async def test_a_write_replaces_the_file_at_once_and_keeps_its_mode(client: Client, root: Path) -> None:
    script = root / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    with script.open() as reader:
        await answer(client, "write_file", path="run.sh", text="new")
        assert reader.read() == "old"
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o750)
    assert os.listdir(root) == ["run.sh"]


async def test_a_failed_write_leaves_nothing_behind(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    assert "'a.txt': No space left" in await refusal(client, "write_file", path="a.txt", text="x")
    assert os.listdir(root) == []


async def test_a_text_over_the_limit_is_refused_before_anything_is_written(client: Client, root: Path) -> None:
    text = "x" * (files.MAX_WRITE_BYTES + 1)
    assert "at most 1048576" in await refusal(client, "write_file", path="a.txt", text=text)
    assert os.listdir(root) == []


async def test_a_long_listing_says_how_much_is_missing(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 2)
    for name in "abcde":
        (root / name).touch()
    listed = await answer(client, "list_files")
    assert listed.splitlines() == ["a (0 bytes)", "b (0 bytes)", "[3 more of 5 entries not shown]"]


async def test_a_search_stops_at_its_limits_and_says_so(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_MATCHES", 2)
    monkeypatch.setattr(files, "MAX_VISITED_FILES", 4)
    for name in "abcde":
        (root / name).touch()
    results = (await answer(client, "search_files", pattern="[ab]")).splitlines()
    assert results == ["a", "b", "[stopped after looking at 4 files]"]
    results = (await answer(client, "search_files", pattern="*")).splitlines()
    assert results == ["a", "b", "[stopped after 2 results; use a narrower pattern]"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["src/deep/b.py", "src/a.py", "top.py"]),
        ("**/*.py", ["src/deep/b.py", "src/a.py", "top.py"]),
        ("src/**/*.py", ["src/deep/b.py", "src/a.py"]),
        ("src/a.py", ["src/a.py"]),
        ("a.py", ["src/a.py"]),
    ],
)
async def test_a_pattern_with_a_slash_is_compared_with_the_whole_path(
    client: Client, root: Path, pattern: str, expected: list[str]
) -> None:
    (root / "src" / "deep").mkdir(parents=True)
    for path in ("top.py", "src/a.py", "src/deep/b.py"):
        (root / path).touch()
    found = await answer(client, "search_files", pattern=pattern)
    assert sorted(found.splitlines()) == sorted(expected)


async def test_a_root_that_is_no_directory_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere' is not a directory"):
        files.create_server(tmp_path / "nowhere")
