"""Downloads into a sandbox: where the file goes, what is refused, and the script, run with each program it can use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from toolhub_servers.python.download import check_url, is_offline, script, target_of

BODY = b"\x00\x01 body\n" * 1000


@pytest.mark.quick
@pytest.mark.parametrize(
    ("url", "path", "target"),
    [
        ("https://example.org/a/data.csv?x=1#top", "/home/user", "/home/user/data.csv"),
        ("https://example.org/a/data.csv", "/home/user/sets/", "/home/user/sets/data.csv"),
        ("https://example.org/a/data.csv", "/home/user/v1.2/", "/home/user/v1.2/data.csv"),
        ("https://example.org/a/data.csv", "/home/user/other.csv", "/home/user/other.csv"),
        ("https://example.org/a/data.csv", "sets/../other.csv", "/home/user/other.csv"),
        ("https://example.org/a/data.csv", "", "/home/user/data.csv"),
        ("https://example.org", "/tmp", "/tmp/downloaded_file"),
        ("https://example.org/a/", "/tmp/", "/tmp/downloaded_file"),
        ("https://example.org/a/..", "/tmp/", "/tmp/downloaded_file"),
    ],
)
def test_the_target_is_the_path_or_the_name_in_the_url_below_it(url: str, path: str, target: str) -> None:
    assert target_of(url, path) == target


@pytest.mark.quick
@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/a",
        "file:///etc/passwd",
        "--output-document=/etc/passwd",
        "-i",
        "example.org/a",
        "http://",
        "http://[bad",
        "http://example.org:99999/",
        "",
        " http://example.org/a",
        "http://example.org/a b",
        "http://example.org/a\nb",
        "http://example.org/\0",
    ],
)
def test_only_a_plain_http_url_is_downloaded(url: str) -> None:
    with pytest.raises(ValueError):
        check_url(url)


@pytest.mark.quick
@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/a", "HTTPS://example.org/?q='$(id)'", "http://[::1]/a"])
def test_a_plain_http_url_is_accepted(url: str) -> None:
    check_url(url)


DEVICES = """\
Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame |bytes    packets
"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("probe", "offline"),
    [
        (f"{DEVICES}    lo:       0       0\n", True),
        (f"{DEVICES}    lo:       0       0\n  eth0: 12 1\n", False),
        (f"{DEVICES}    lo:       0       0\nHTTPS_PROXY=http://10.0.0.1:3128\n", False),
        (f"{DEVICES}    lo:       0       0\nno_proxy=localhost\nhttp_proxy=\n", True),
        ("", False),
    ],
)
def test_a_sandbox_with_nothing_but_a_loopback_is_offline(probe: str, offline: bool) -> None:
    assert is_offline(probe) is offline


class Site(BaseHTTPRequestHandler):
    """Every page is BODY; /missing is not there."""

    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["wget", "curl", "python3"])
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder for PATH that has only one of the programs that can download."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (request.param, "mv", "rm"):
        found = os.path.realpath(sys.executable) if name == "python3" else shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed")
        (folder / name).symlink_to(found)
    return folder


def run(programs: Path, url: str, target: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(programs), "no_proxy": "*"}
    bash = shutil.which("bash") or "/bin/bash"
    return subprocess.run(
        [bash, "-c", script(url, str(target))], env=env, capture_output=True, text=True, timeout=30, cwd=target.parent
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def test_a_file_is_downloaded_whatever_program_there_is(programs: Path, site: str, home: Path) -> None:
    done = run(programs, f"{site}/a", home / "it's $(id) here")
    assert done.returncode == 0, done.stderr
    assert (home / "it's $(id) here").read_bytes() == BODY
    assert os.listdir(home) == ["it's $(id) here"]


def test_a_url_is_never_read_as_a_command(programs: Path, site: str, home: Path) -> None:
    done = run(programs, f"{site}/a?x='$(touch${{IFS}}{home}/hacked)`touch${{IFS}}{home}/hacked`;'", home / "a")
    assert done.returncode == 0, done.stderr
    assert os.listdir(home) == ["a"]


def test_a_failed_download_leaves_the_older_file_and_no_part_of_a_new_one(
    programs: Path, site: str, home: Path
) -> None:
    (home / "a").write_text("older")
    done = run(programs, f"{site}/missing", home / "a")
    assert done.returncode != 0
    assert "404" in done.stderr
    assert (home / "a").read_text() == "older"
    assert os.listdir(home) == ["a"]


def test_a_folder_is_never_replaced(programs: Path, site: str, home: Path) -> None:
    (home / "a.d").mkdir()
    done = run(programs, f"{site}/a", home / "a.d")
    assert (done.returncode, done.stderr.strip()) == (1, f"{home}/a.d is a directory")
