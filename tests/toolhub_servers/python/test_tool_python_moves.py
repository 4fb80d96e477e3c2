"""Files in and out of real sandboxes by tool-python: the texts, and that no path leads where it should not."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from server_calls import answer, created
from toolhub_sandbox import OwnerSandboxes
from toolhub_servers.python import server as python

from toolhub.extensions import BuiltinContext

pytestmark = pytest.mark.anyio

BINARY = bytes(range(256)) * 4096
UPLOAD = "upload_file_from_local_to_sandbox"
SAVE = "download_file_from_sandbox_to_local"
FETCH = "download_file_from_internet_to_sandbox"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The folder that may be read; beside it is a file that may not."""
    (tmp_path / "secret.txt").write_text("secret")
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.bin").write_bytes(BINARY)
    return local


@asynccontextmanager
async def serving(scope: OwnerSandboxes, **options: Any) -> AsyncIterator[tuple[Client, str]]:
    """A client, and the id of a sandbox."""
    with anyio.fail_after(60):
        async with Client(python.create_server(context=BuiltinContext("task", scope), **options)) as client:
            yield client, await created(client)


async def output(client: Client, sandbox_id: str, command: str) -> str:
    return await answer(client, "run_command", sandbox_id=sandbox_id, command=command)


async def test_an_uploaded_file_arrives_whole(scope: OwnerSandboxes, local: Path) -> None:
    async with serving(scope, local_dirs=[str(local)]) as (client, sandbox_id):
        told = await answer(client, UPLOAD, sandbox_id=sandbox_id, local_file_path=str(local / "a.bin"))
        assert told == "File uploaded to /home/user/a.bin"
        assert hashlib.sha256(BINARY).hexdigest() in await output(client, sandbox_id, "sha256sum /home/user/a.bin")


async def test_an_upload_makes_its_folder_whatever_the_names(scope: OwnerSandboxes, local: Path) -> None:
    (local / "it's $(id).txt").write_text("data")
    async with serving(scope, local_dirs=[str(local)]) as (client, sandbox_id):
        arguments = {"local_file_path": "it's $(id).txt", "sandbox_file_path": "new 'dir/../-v/"}
        told = await answer(client, UPLOAD, sandbox_id=sandbox_id, **arguments)
        assert told == "File uploaded to /home/user/-v/it's $(id).txt"
        assert "stdout='data'" in await output(client, sandbox_id, "cat ~/-v/*")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("missing", "[ERROR]: Local file does not exist: {path}"),
        ("folder", "[ERROR]: Path is not a file: {path}"),
        ("pipe", "[ERROR]: Path is not a file: {path}"),
        ("../secret.txt", "[ERROR]: Failed to upload file {path} to sandbox {id}: it is outside the directories"),
        ("link", "[ERROR]: Failed to upload file {path} to sandbox {id}: it is outside the directories"),
        ("/etc/passwd", "[ERROR]: Failed to upload file {path} to sandbox {id}: it is outside the directories"),
        ("/dev/zero", "[ERROR]: Failed to upload file {path} to sandbox {id}: it is outside the directories"),
    ],
)
async def test_what_may_not_be_uploaded_is_told_and_does_not_arrive(
    scope: OwnerSandboxes, local: Path, path: str, told: str
) -> None:
    (local / "folder").mkdir()
    (local / "link").symlink_to("../secret.txt")
    os.mkfifo(local / "pipe")
    async with serving(scope, local_dirs=[str(local)]) as (client, sandbox_id):
        refused = await answer(client, UPLOAD, sandbox_id=sandbox_id, local_file_path=path)
        assert refused.startswith(told.format(path=path, id=sandbox_id))
        assert "stdout=''" in await output(client, sandbox_id, "ls /home/user")


async def test_without_local_dirs_the_option_is_named(scope: OwnerSandboxes, local: Path) -> None:
    async with serving(scope) as (client, sandbox_id):
        told = await answer(client, UPLOAD, sandbox_id=sandbox_id, local_file_path=str(local / "a.bin"))
        assert told == (
            f"[ERROR]: Failed to upload file {local}/a.bin to sandbox {sandbox_id}: "
            "no local files may be read here: the option 'local_dirs' of this server is not set"
        )


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("/proc/nowhere", "[ERROR]: Failed to create directory {folder} in sandbox {id}: CommandResult(stderr="),
        ("x" * 300, "[ERROR]: Failed to create directory /home/user/{folder} in sandbox {id}: CommandResult(stderr="),
        ("no\0where", "[ERROR]: Failed to upload file a.bin to sandbox {id}: "),
    ],
)
async def test_a_folder_that_cannot_be_made_is_told(scope: OwnerSandboxes, local: Path, folder: str, told: str) -> None:
    async with serving(scope, local_dirs=[str(local)]) as (client, sandbox_id):
        arguments = {"local_file_path": "a.bin", "sandbox_file_path": folder}
        refused = await answer(client, UPLOAD, sandbox_id=sandbox_id, **arguments)
        assert refused.startswith(told.format(folder=folder, id=sandbox_id))


async def test_a_file_over_the_limit_is_refused_in_both_directions(
    scope: OwnerSandboxes, local: Path, tmp_path: Path
) -> None:
    with (local / "vast").open("wb") as vast:
        vast.truncate(1 << 40)
    async with serving(scope, profile="small", local_dirs=[str(local)], logs_dir=str(tmp_path)) as (client, sandbox_id):
        told = await answer(client, UPLOAD, sandbox_id=sandbox_id, local_file_path="vast")
        assert told.startswith(f"[ERROR]: Failed to upload file vast to sandbox {sandbox_id}: ")
        await output(client, sandbox_id, "head -c 1001 /dev/zero > ~/big")
        told = await answer(client, SAVE, sandbox_id=sandbox_id, sandbox_file_path="/home/user/big")
        assert told.startswith(f"[ERROR]: Failed to read file '/home/user/big' from sandbox {sandbox_id}: ")
        assert os.listdir(tmp_path / "tmpfiles") == []


async def test_a_saved_file_is_whole_and_its_path_is_told(scope: OwnerSandboxes, local: Path, tmp_path: Path) -> None:
    async with serving(scope, local_dirs=[str(local)], logs_dir=str(tmp_path)) as (client, sandbox_id):
        await answer(client, UPLOAD, sandbox_id=sandbox_id, local_file_path="a.bin")
        told = await answer(client, SAVE, sandbox_id=sandbox_id, sandbox_file_path="/home/user/a.bin")
        saved = tmp_path / "tmpfiles" / f"sandbox_{sandbox_id}_a.bin"
        assert told == f"File downloaded successfully to: {saved}"
        assert saved.read_bytes() == BINARY


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/b\nc", "..", "x" * 5_000])
async def test_a_saved_file_is_in_tmpfiles_whatever_its_name(scope: OwnerSandboxes, tmp_path: Path, name: str) -> None:
    async with serving(scope, logs_dir=str(tmp_path)) as (client, sandbox_id):
        await output(client, sandbox_id, "echo data > ~/a")
        arguments = {"sandbox_file_path": "/home/user/a", "local_filename": name}
        told = await answer(client, SAVE, sandbox_id=sandbox_id, **arguments)
        (saved,) = os.listdir(tmp_path / "tmpfiles")
        assert told == f"File downloaded successfully to: {tmp_path}/tmpfiles/{saved}"
        assert saved.startswith(f"sandbox_{sandbox_id}_")
        assert os.listdir(tmp_path) == ["tmpfiles"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/home/user", "[ERROR]: Cannot download '{path}' from sandbox {id}: path is a directory, not a file."),
        ("/home/user/none", "[ERROR]: Cannot download '{path}' from sandbox {id}: file does not exist."),
        ("/home/user/out", "[ERROR]: Cannot download '{path}' from sandbox {id}: file does not exist."),
        ("/home/user/pipe", "[ERROR]: Failed to read file '{path}' from sandbox {id}: "),
        ("/dev/zero", "[ERROR]: Failed to read file '{path}' from sandbox {id}: "),
    ],
)
async def test_what_cannot_be_saved_is_told_and_leaves_nothing(
    scope: OwnerSandboxes, local: Path, tmp_path: Path, path: str, told: str
) -> None:
    async with serving(scope, logs_dir=str(tmp_path / "logs")) as (client, sandbox_id):
        await output(client, sandbox_id, f"ln -s {tmp_path}/secret.txt ~/out; mkfifo ~/pipe")
        refused = await answer(client, SAVE, sandbox_id=sandbox_id, sandbox_file_path=path)
        assert refused.startswith(told.format(path=path, id=sandbox_id))
        assert not (tmp_path / "logs" / "tmpfiles").exists() or os.listdir(tmp_path / "logs" / "tmpfiles") == []


async def test_without_a_folder_for_logs_nothing_is_saved(scope: OwnerSandboxes) -> None:
    async with serving(scope) as (client, sandbox_id):
        assert await answer(client, SAVE, sandbox_id=sandbox_id, sandbox_file_path="/etc/hostname") == (
            "[ERROR]: LOGS_DIR environment variable is not set. Cannot determine where to save the file."
        )


async def test_without_a_network_the_config_key_is_named(scope: OwnerSandboxes) -> None:
    url = "http://192.0.2.1/a"
    async with serving(scope) as (client, sandbox_id):
        assert await answer(client, FETCH, sandbox_id=sandbox_id, url=url) == (
            f"[ERROR]: Failed to download file from {url}: this sandbox has no network. "
            "It gets one by the config key sandbox.profiles.bare.network."
        )


@pytest.mark.parametrize("url", ["ftp://example.org/a", "--help", "file:///etc/passwd"])
async def test_only_http_is_downloaded(scope: OwnerSandboxes, url: str) -> None:
    async with serving(scope) as (client, sandbox_id):
        assert await answer(client, FETCH, sandbox_id=sandbox_id, url=url) == (
            f"[ERROR]: Failed to download file from {url}: "
            "only URLs that start with http:// or https:// can be downloaded"
        )


class Site(BaseHTTPRequestHandler):
    """Every page is "body"; /missing is not there. Counts what it is asked."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"body")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Site.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_with_a_network_a_file_is_downloaded_and_its_quoted_path_told(scope: OwnerSandboxes, site: str) -> None:
    async with serving(scope, profile="online") as (client, sandbox_id):
        told = await answer(client, FETCH, sandbox_id=sandbox_id, url=f"{site}/x/data.csv?y=1")
        assert told == "File downloaded to /home/user/data.csv"
        arguments = {"url": f"{site}/it's", "sandbox_file_path": "/home/user/new dir/"}
        told = await answer(client, FETCH, sandbox_id=sandbox_id, **arguments)
        assert told == "File downloaded to '/home/user/new dir/it'\"'\"'s'"
        assert "stdout='bodybody'" in await output(client, sandbox_id, "cat ~/data.csv ~/new*/it*")


async def test_a_page_that_is_not_there_is_asked_for_once_and_told(scope: OwnerSandboxes, site: str) -> None:
    async with serving(scope, profile="online") as (client, sandbox_id):
        told = await answer(client, FETCH, sandbox_id=sandbox_id, url=f"{site}/missing")
        assert told.startswith(
            f"[ERROR]: Failed to download file from {site}/missing to /home/user/missing after 3 attempts.\n\n"
            "exit_code: "
        )
        assert "\n\nDetails: stderr: " in told and "404" in told
        assert Site.asked == 1
        assert "stdout=''" in await output(client, sandbox_id, "ls ~")
