"""Which files of the host tool-python can be made to read, and where it can be made to write."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from toolhub_servers.serving import local_files as files
from toolhub_servers.serving.local_files import OutputDir, ReadableFolders, saved_name

pytestmark = pytest.mark.quick


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "x.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a.txt").write_text("data")
    return root


def content(sources: ReadableFolders, path: str | Path) -> bytes:
    with sources.open(str(path)) as stream:
        return stream.read()


def test_a_file_below_a_folder_is_read_by_its_absolute_or_relative_path(root: Path) -> None:
    sources = ReadableFolders([str(root.parent / "root-2"), str(root)])
    for path in (root / "deep" / "a.txt", "deep/a.txt", "deep/../deep/./a.txt", f"{root}/deep//a.txt"):
        assert content(sources, path) == b"data"


def test_a_link_to_a_file_below_the_same_folder_is_followed(root: Path) -> None:
    (root / "link").symlink_to("deep")
    assert content(ReadableFolders([str(root)]), "link/a.txt") == b"data"


def test_a_folder_given_by_a_link_is_the_folder_that_it_leads_to(root: Path) -> None:
    (root.parent / "alias").symlink_to("root")
    sources = ReadableFolders([str(root.parent / "alias")])
    assert content(sources, root.parent / "alias" / "deep" / "a.txt") == b"data"


@pytest.mark.parametrize(
    "path", ["../outside.txt", "/etc/passwd", "/dev/zero", "file-link", "folder-link/outside.txt", "../root-2/x.txt"]
)
def test_no_path_leads_out_of_the_folders(root: Path, path: str) -> None:
    (root / "file-link").symlink_to("../outside.txt")
    (root / "folder-link").symlink_to("..")
    with pytest.raises(PermissionError, match="outside the directories that may be read"):
        ReadableFolders([str(root)]).open(path)


def test_whether_a_file_outside_exists_cannot_be_found_out(root: Path) -> None:
    sources = ReadableFolders([str(root)])
    for path in ("/etc/passwd", "/etc/no-such-file"):
        with pytest.raises(PermissionError, match="outside the directories"):
            sources.open(path)


@pytest.mark.parametrize("path", ["missing", "deep/a.txt/b", "no\0where", "no\ud800where", "dangling"])
def test_what_is_not_there_is_missing(root: Path, path: str) -> None:
    (root / "dangling").symlink_to("nothing")
    with pytest.raises(FileNotFoundError):
        ReadableFolders([str(root)]).open(path)


@pytest.mark.parametrize("path", ["pipe", "deep", ".", "", "zero"])
def test_only_regular_files_are_read_and_nothing_else_is_waited_for(root: Path, path: str) -> None:
    os.mkfifo(root / "pipe")
    if path == "zero":
        try:
            os.mknod(root / "zero", 0o020666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("device nodes need root")
    with pytest.raises(IsADirectoryError):
        ReadableFolders([str(root)]).open(path)


@pytest.mark.parametrize("swapped", ["deep", "deep/a.txt"])
def test_a_link_that_appears_after_the_check_is_not_followed(
    root: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race, staged: between resolving and opening, part of the path becomes a link to the outside."""
    (root.parent / "a.txt").write_text("secret")
    resolve = os.path.realpath

    def resolve_then_swap(path: str) -> str:
        real = resolve(path)
        (root / swapped).rename(root.parent / "aside")
        (root / swapped).symlink_to(root.parent if swapped == "deep" else root.parent / "a.txt")
        return real

    sources = ReadableFolders([str(root)])
    monkeypatch.setattr(os.path, "realpath", resolve_then_swap)
    with pytest.raises((PermissionError, FileNotFoundError)):
        sources.open("deep/a.txt")


def test_without_folders_nothing_is_read_and_the_option_is_named() -> None:
    with pytest.raises(PermissionError, match="'local_dirs' of this server is not set"):
        ReadableFolders([]).open("/etc/passwd")


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="local_dirs: .*nowhere' is not a directory"):
        ReadableFolders([str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("plot.png", "sandbox_s1_plot.png"),
        ("Größe (1).csv", "sandbox_s1_Größe (1).csv"),
        ("../../etc/passwd", "sandbox_s1_____etc_passwd"),
        ("/etc/cron.d/x", "sandbox_s1__etc_cron.d_x"),
        ("a\nb\0c\\d", "sandbox_s1_a_b_c_d"),
        ("..", "sandbox_s1__"),
        ("", "sandbox_s1_downloaded_file"),
        ("bad\udcff", "sandbox_s1_bad_"),
    ],
)
def test_a_saved_file_has_one_harmless_name(name: str, saved: str) -> None:
    assert saved_name("s1", name) == saved


@pytest.mark.parametrize("name", ["x" * 5_000, "é" * 5_000 + ".csv", "a." + "é" * 5_000])
def test_a_saved_name_fits_into_a_directory(name: str, tmp_path: Path) -> None:
    saved = saved_name("s" * 100, name)
    assert len(saved.encode()) <= 255
    (tmp_path / saved).touch()


def test_a_long_name_keeps_its_extension() -> None:
    assert saved_name("s1", "é" * 5_000 + ".csv").endswith("é.csv")


async def pieces(*given: bytes | Exception) -> AsyncIterator[bytes]:
    for piece in given:
        if isinstance(piece, Exception):
            raise piece
        yield piece


@pytest.mark.anyio
async def test_a_file_is_saved_in_tmpfiles_replacing_an_older_one(tmp_path: Path) -> None:
    drop = OutputDir(str(tmp_path / "logs"))
    await drop.save("a", pieces(b"older and longer"))
    assert await drop.save("a", pieces(b"new", b"er")) == str(tmp_path / "logs" / "tmpfiles" / "a")
    assert (tmp_path / "logs" / "tmpfiles" / "a").read_bytes() == b"newer"
    assert os.listdir(tmp_path / "logs" / "tmpfiles") == ["a"]


@pytest.mark.anyio
async def test_a_link_under_the_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tmpfiles").mkdir()
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "tmpfiles" / "a").symlink_to("../victim")
    await OutputDir(str(tmp_path)).save("a", pieces(b"new"))
    assert (tmp_path / "victim").read_text() == "untouched"
    assert (tmp_path / "tmpfiles" / "a").read_bytes() == b"new"


@pytest.mark.anyio
async def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tmpfiles").symlink_to("elsewhere")
    with pytest.raises(OSError):
        await OutputDir(str(tmp_path)).save("a", pieces(b"new"))
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.anyio
async def test_a_file_that_breaks_off_leaves_nothing_and_the_older_one_in_place(tmp_path: Path) -> None:
    drop = OutputDir(str(tmp_path))
    await drop.save("a", pieces(b"older"))
    with pytest.raises(RuntimeError, match="broke off"):
        await drop.save("a", pieces(b"half", RuntimeError("broke off")))
    assert (tmp_path / "tmpfiles" / "a").read_bytes() == b"older"
    assert os.listdir(tmp_path / "tmpfiles") == ["a"]


@pytest.mark.anyio
async def test_a_cancelled_save_leaves_nothing(tmp_path: Path) -> None:
    half_way = anyio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"half"
        half_way.set()
        await anyio.sleep_forever()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(OutputDir(str(tmp_path)).save, "a", endless())
            await half_way.wait()
            tasks.cancel_scope.cancel()
    assert os.listdir(tmp_path / "tmpfiles") == []


@pytest.mark.anyio
async def test_a_file_is_read_in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE_BYTES", 3)
    with ReadableFolders([str(root)]).open("deep/a.txt") as stream:
        assert [piece async for piece in files.read_pieces(stream)] == [b"dat", b"a"]


def test_an_empty_folder_name_never_means_the_working_directory() -> None:
    with pytest.raises(ValueError, match="an entry is empty"):
        ReadableFolders([""])
