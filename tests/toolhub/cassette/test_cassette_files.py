"""A recording is only data: what is damaged, too large or no recording is refused, with its file and line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cassettes import a_notebook, a_taping_hub

from toolhub import ConfigError
from toolhub.cassette import recording as format_of
from toolhub.cassette.recording import Header, files_in, read_header, read_recording
from toolhub.model import Json

pytestmark = pytest.mark.quick

HEADER = Header.now("t1", "", ["notes"]).model_dump()
EXCHANGE: Json = {
    "n": 1,
    "server": "notes",
    "tool": "read",
    "arguments": {},
    "changes": False,
    "sent": "maybe",
    "began": 0,
    "seconds": 0.5,
    "result": {"content": []},
}


def a_file(folder: Path, *lines: Any, name: str = "t1.jsonl.gz") -> Path:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path = folder / name
    path.write_bytes(gzip.compress(b"\n".join([*texts, b""])))
    return path


def test_a_recording_is_read(tmp_path: Path):
    assert read_recording(a_file(tmp_path, HEADER, EXCHANGE)).exchanges[0].outcome == "ok"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "2: this is not a line of a recording"),
        (b"[" * 100_000, "2: this is not a line of a recording"),
        ({**EXCHANGE, "began": -1}, "2: this is not a line of a recording: began"),
        ({**EXCHANGE, "seconds": 1e300}, "2: this is not a line of a recording: seconds"),
        ({**EXCHANGE, "result": "text"}, "2: this is not a line of a recording: result"),
        ({**EXCHANGE, "more": 1}, "2: this is not a line of a recording: more"),
        ([EXCHANGE], "2: this is not a line of a recording"),
        ({"describes": "notes", "info": {"name": 1}}, "2: this is not a line of a recording: info"),
        (b'{"arguments": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", "2: this is not a line of a recording"),
    ],
)
def test_a_line_that_is_none_of_a_recording_is_refused(tmp_path: Path, line: Any, problem: str):
    path = a_file(tmp_path, HEADER, line)
    with pytest.raises(ConfigError, match=f"{path}:{problem}"):
        read_recording(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"\x1f\x8b garbage", gzip.compress(b"{}" * 10)[:-9]],
    ids=["empty", "garbage", "damaged", "cut off"],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "t1.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_header(path)


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(format_of, "MAX_BYTES", 1 << 20)
    path = a_file(tmp_path, HEADER, b" " * (1 << 24))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(ConfigError, match="2: this recording is larger than 1048576 bytes"):
        read_recording(path)


def test_a_header_of_another_format_says_so(tmp_path: Path):
    path = a_file(tmp_path, {**HEADER, "toolhub_cassette": 2})
    with pytest.raises(ConfigError, match="has format 2; this version of toolhub reads format 1"):
        read_header(path)


def test_server_names_that_climb_are_refused(tmp_path: Path):
    path = a_file(tmp_path, {**HEADER, "servers": ["../../etc"]})
    with pytest.raises(ConfigError, match=r"servers\.0"):
        read_header(path)


def test_links_and_pipes_are_not_followed(tmp_path: Path):
    a_file(tmp_path, HEADER, name="real")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in files_in(tmp_path):
        with pytest.raises(ConfigError, match="cannot read this recording"):
            read_header(path)


@pytest.mark.anyio
async def test_a_hub_refuses_to_record_where_others_can_write(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="other users can write"):
        async with a_taping_hub(tmp_path, "record", a_notebook()):
            pass
