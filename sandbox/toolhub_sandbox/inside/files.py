"""Files in pieces, opened by number: what put() and get() do inside.

Links and `..` need no care here: this process sees nothing but the sandbox.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from toolhub_sandbox.inside.frames import PIECE, Head

MAX_OPEN = 16
_PROBLEMS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EISDIR: "directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "no space",
    errno.EDQUOT: "no space",
    errno.EFBIG: "no space",
    errno.ENXIO: "not a file",
}

Reply = tuple[Head, list[bytes]]


@dataclass(eq=False)
class OpenFile:
    descriptor: int
    path: str
    temporary: str = ""


@dataclass(eq=False)
class Files:
    """The files that the hub is moving, by the numbers it gave them."""

    home: str
    """What stands for /home/user, and where relative paths start."""
    map_home: bool = False
    """Whether /home/user must be translated, because it is not the sandbox's own."""
    _open: dict[int, OpenFile] = field(default_factory=dict)

    def handle(self, head: Head, parts: list[bytes]) -> Reply:
        """Do what the request's `op` says; a failure is part of the reply."""
        try:
            if head["op"] == "open":
                return self._open_file(head["file"], self.path(parts[0]), head["mode"]), []
            file = self._open[head["file"]]
            if head["op"] == "read":
                return {}, [os.read(file.descriptor, PIECE)]
            if head["op"] == "write":
                return self._write(file, parts[0]), []
            return self._close(head["file"], keep=head["keep"]), []
        except OSError as exc:
            return {"problem": _PROBLEMS.get(exc.errno or 0, "other"), "reason": exc.strerror or str(exc)}, []
        except KeyError:
            return {"problem": "other", "reason": "the file is not open"}, []
        except (ValueError, RecursionError) as exc:  # a null byte in the path; a thousand folders or links
            return {"problem": "other", "reason": str(exc)}, []

    def path(self, path: bytes) -> str:
        text = os.path.normpath(os.path.join("/home/user", os.fsdecode(path)))
        if self.map_home and (text == "/home/user" or text.startswith("/home/user/")):
            text = self.home + text.removeprefix("/home/user")
        return text

    def _open_file(self, number: int, path: str, mode: str) -> Head:
        if len(self._open) >= MAX_OPEN:
            return {"problem": "other", "reason": f"{MAX_OPEN} files are being moved already"}
        self._open[number] = _for_reading(path) if mode == "r" else _for_writing(path)
        return {}

    def _write(self, file: OpenFile, data: bytes) -> Head:
        while data:
            data = data[os.write(file.descriptor, data) :]
        return {}

    def _close(self, number: int, *, keep: bool) -> Head:
        file = self._open.pop(number)
        os.close(file.descriptor)
        if file.temporary:
            if keep:
                os.replace(file.temporary, file.path)
            else:
                os.unlink(file.temporary)
        return {}


def _for_reading(path: str) -> OpenFile:
    # A FIFO would block for ever without O_NONBLOCK.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO, "not a regular file")
    return OpenFile(descriptor, path)


def _for_writing(path: str) -> OpenFile:
    """Readers see the old file or the new one, never a part: it is written beside and moved."""
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.ENXIO, "not a regular file")
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as exc:
        raise OSError(errno.EEXIST, "there is a file where its folder should be") from exc
    if len(os.fsencode(name)) > os.pathconf(folder, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    temporary = os.path.join(folder, f".{os.urandom(8).hex()}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if os.path.exists(path):
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
    return OpenFile(descriptor, path, temporary)
