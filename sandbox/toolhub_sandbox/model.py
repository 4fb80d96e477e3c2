"""What sandboxes give back: frozen values, the same from every backend."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["kept", "lost"]


@dataclass(frozen=True, slots=True)
class Display:
    """Something shown as Jupyter shows it: one value in several MIME types.

    data: MIME type -> text; images in base64, as in a notebook file.
    """

    data: Mapping[str, str]
    is_result: bool = False
    """Whether it is the value of the last expression, rather than something displayed on the way."""

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def png(self) -> bytes | None:
        """The image; None where there is none, or where the code called something else an image."""
        try:
            return base64.b64decode(self.data.get("image/png", "")) or None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended an execution.

    Beside Python's own, `name` may be ExecutionTimeout, Interrupted, WorkerDied or MemoryLimit.
    """

    name: str
    value: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Execution:
    """What one piece of code did. Text that is not UTF-8 has replacement characters."""

    stdout: str = ""
    stderr: str = ""
    displays: tuple[Display, ...] = ()
    error: Failure | None = None
    state: State = "kept"
    """`lost`: the interpreter had to be replaced; variables, imports and threads are gone, files are not.

    Told once: by the execution that cost it or, if nobody waited for that one or none was running, by the next.
    """
    timed_out: bool = False
    dropped_bytes: int = 0
    """Output beyond the profile's `output_bytes`."""
    number: int = 0
    """Counts the executions of this sandbox, from 1."""

    @property
    def result(self) -> str | None:
        """The text of the last expression's value."""
        return next((shown.text for shown in self.displays if shown.is_result), None)

    @property
    def images(self) -> tuple[bytes, ...]:
        """Every PNG that was shown, in order."""
        return tuple(png for shown in self.displays if (png := shown.png) is not None)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a shell command did.

    exit_code: as the shell tells it, 128 + n for signal n, so 137 when it was ended for its timeout; 126 when it could
    not be started, for example in a `cwd` that does not exist.
    """

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """How a sandbox is doing. Seconds and bytes; None where the backend cannot tell."""

    id: str
    profile: str
    backend: str
    isolation: str
    age_s: float
    idle_s: float
    executions: int
    lease_s: float | None = None
    """Time left; None: it lives as long as its owner."""
    cpu_s: float | None = None
    rss_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a backend really enforces here. Each of `weaker` says what is missing and why."""

    backend: str
    summary: str
    limits: str
    """What bounds memory and processes: `cgroup v2`, `cgroup v1`, `rlimits and watch`, ..."""
    weaker: tuple[str, ...] = field(default_factory=tuple)
    is_secure: bool = True
