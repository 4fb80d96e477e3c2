"""An MCP server for the files below one directory.

Every path is resolved, links included, and must then still be below the root. That keeps a model inside. It does not
stop another process that replaces a directory by a link between the check and the use.
"""

from __future__ import annotations

import codecs
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, TypeVarTuple

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server, make_tool

# Enough for source files and notes. A larger file would not fit into a model's context.
MAX_WRITE_BYTES = 1 << 20
MAX_READ_BYTES = 1 << 20
MAX_ENTRIES = 1000
MAX_MATCHES = 200
MAX_LINE_CHARACTERS = 200
# A search below / must end in seconds, not hours.
MAX_VISITED_FILES = 50_000
# The longest UTF-8 sequence: with less, a read might get no character at all.
MIN_READ_BYTES = 4

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
OVERWRITES = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Rest = TypeVarTuple("Rest")


def create_server(root: str | Path = ".") -> MCPServer:
    """Return the server. Raises ValueError if `root` is not a directory."""
    tree = FileTree(root)

    async def list_files(path: str = ".") -> str:
        """List a directory: one entry per line, directories with a trailing slash, files with their size."""
        return await _in_thread(tree.listing, path)

    async def read_file(
        path: str,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=MIN_READ_BYTES, le=MAX_READ_BYTES)] = 65536,
    ) -> str:
        """Read a UTF-8 text file, `limit` bytes from byte `offset` on."""
        return await _in_thread(tree.read, path, offset, limit)

    async def write_file(path: str, text: str) -> str:
        """Write a text file as a whole (at most 1 MiB), replacing what was there and making directories."""
        return await _in_thread(tree.write, path, text)

    async def search_files(pattern: str, text: str = "") -> str:
        """Find files by name, and with `text` the lines in them that contain it.

        `pattern` is a shell pattern. Without a slash it is compared with names (*.py), else with the path
        below the root, where * also crosses directories (src/*.py).
        """
        return await _in_thread(tree.search, pattern, text)

    tools = [
        make_tool(list_files, annotations=READ_ONLY),
        make_tool(read_file, annotations=READ_ONLY),
        make_tool(write_file, annotations=OVERWRITES),
        make_tool(search_files, annotations=READ_ONLY),
    ]
    return make_server("toolhub-files", tools=tools)


class FileTree:
    """The files below one directory. Methods block. The text of a ToolError is for the model."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ValueError(f"root {str(root)!r} is not a directory")

    def __repr__(self) -> str:
        return f"<FileTree {self.root}>"

    def listing(self, path: str) -> str:
        entries = sorted(os.scandir(self.resolve(path)), key=lambda entry: entry.name)
        lines = [_describe(entry) for entry in entries[:MAX_ENTRIES]]
        if len(entries) > MAX_ENTRIES:
            lines.append(f"[{len(entries) - MAX_ENTRIES} more of {len(entries)} entries not shown]")
        return "\n".join(lines) or "[empty]"

    def read(self, path: str, offset: int, limit: int) -> str:
        file = self.resolve(path)
        if not file.is_file():
            raise ToolError(f"{path!r} {'is not a regular file' if file.exists() else 'does not exist'}")
        data, size = _read_part(file, offset, limit)
        if b"\0" in data:
            raise ToolError(f"{path!r} is not a text file")
        text, end = _decode(data, offset, size)
        if offset == 0 and end == size:
            return text
        note = f"bytes {offset} to {end} of {size}"
        return f"{text}\n[{note}; go on with offset={end}]" if end < size else f"{text}\n[{note}]"

    def write(self, path: str, text: str) -> str:
        file = self.resolve(path)
        try:
            data = text.encode()
        except UnicodeEncodeError as exc:
            raise ToolError(f"the text cannot be written as UTF-8: {exc.reason}") from exc
        if len(data) > MAX_WRITE_BYTES:
            raise ToolError(f"the text has {len(data)} bytes; at most {MAX_WRITE_BYTES} can be written")
        if file.exists() and not file.is_file():
            raise ToolError(f"{path!r} is not a regular file")
        _replace(file, data)
        return f"wrote {len(data)} bytes to {path}"

    def search(self, pattern: str, text: str) -> str:
        found: list[str] = []
        skipped = visited = 0
        for visited, relative in enumerate(self._walk(), start=1):
            if len(found) > MAX_MATCHES or visited > MAX_VISITED_FILES:
                break
            if not _matches(relative, pattern):
                continue
            if not text:
                found.append(relative)
            elif (lines := self._lines_with(relative, text)) is None:
                skipped += 1
            else:
                found.extend(lines)
        return "\n".join([*found[:MAX_MATCHES], *_search_notes(len(found), skipped, visited)])

    def resolve(self, path: str) -> Path:
        """Return the real path, or raise a ToolError if it is not below the root."""
        try:
            real = (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError) as exc:  # a loop of links; a null byte
            raise ToolError(f"{path!r} is not a usable path: {exc}") from exc
        if not real.is_relative_to(self.root):
            raise ToolError(f"{path!r} leads outside the served directory; give a path below it")
        return real

    def _walk(self) -> Iterator[str]:
        """Yield the path below the root of every file, in order, without following links to directories."""
        for directory, subdirectories, names in os.walk(self.root):
            subdirectories.sort()
            for name in sorted(names):
                yield os.path.relpath(os.path.join(directory, name), self.root)

    def _lines_with(self, relative: str, text: str) -> list[str] | None:
        """Return `path:number: line` for each hit, or None if the file cannot be searched."""
        try:
            file = self.resolve(relative)
            if not file.is_file() or file.stat().st_size > MAX_READ_BYTES:
                return None
            data = file.read_bytes()
        except (OSError, ToolError):
            return None
        if b"\0" in data:
            return None
        lines = enumerate(data.decode(errors="replace").splitlines(), start=1)
        return [f"{relative}:{number}: {_shortened(line)}" for number, line in lines if text in line]


async def _in_thread(method: Callable[[str, *Rest], str], path: str, *rest: *Rest) -> str:
    """Run a method in a worker thread; an OSError becomes a ToolError with the path as the model knows it."""
    try:
        return await to_thread.run_sync(method, path, *rest)
    except OSError as exc:
        raise ToolError(f"{path!r}: {exc.strerror}") from exc


def _describe(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name} (link)"  # its target may be outside, so nothing is said about it
    return f"{entry.name}/" if entry.is_dir() else f"{entry.name} ({entry.stat().st_size} bytes)"


def _read_part(file: Path, offset: int, limit: int) -> tuple[bytes, int]:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(limit), os.fstat(stream.fileno()).st_size


def _decode(data: bytes, offset: int, size: int) -> tuple[str, int]:
    """Return the text and the offset after it, without a character that the limit cut in two."""
    end = offset + len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=end >= size)
    return text, end - len(decoder.getstate()[0])


def _replace(file: Path, data: bytes) -> None:
    """Write `data` so that readers see the old file or the new one, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_bytes(data)
        if file.exists():
            shutil.copymode(file, temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _matches(relative: str, pattern: str) -> bool:
    pattern = pattern.removeprefix("**/")
    subject = relative if "/" in pattern else os.path.basename(relative)
    # In the usual meaning, `**/` also matches no directory at all.
    return fnmatchcase(subject, pattern) or fnmatchcase(subject, pattern.replace("/**/", "/"))


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[:MAX_LINE_CHARACTERS] + "..."


def _search_notes(found: int, skipped: int, visited: int) -> list[str]:
    notes = []
    if found == 0:
        notes.append("[nothing found]")
    if found > MAX_MATCHES:
        notes.append(f"[stopped after {MAX_MATCHES} results; use a narrower pattern]")
    if skipped:
        notes.append(f"[{skipped} files not searched: not text, unreadable or over {MAX_READ_BYTES} bytes]")
    if visited > MAX_VISITED_FILES:
        notes.append(f"[stopped after looking at {MAX_VISITED_FILES} files]")
    return notes


def main() -> None:
    parser = make_parser("files", "Lists, reads, writes and searches files below one directory.")
    parser.add_argument("--root", default=".", help="the directory; nothing outside it can be reached")
    serve(parser, create_server)
