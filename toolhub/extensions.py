"""What a builtin server gets from the hub that runs it, and what the hub wants of a sandbox package.

The hub finds its sandboxes by the entry point group `toolhub.sandboxes`, and `serve` more doors to it by
`toolhub.frontends`; these protocols are all they know of them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from toolhub.shared_resources import SharedResources

SANDBOXES = "toolhub.sandboxes"
FRONTENDS = "toolhub.frontends"
EXTENSIONS = "toolhub.extensions"


class SandboxScope(Protocol):
    """One owner's sandboxes; they end with it. See `toolhub_sandbox.SandboxScope`."""

    async def create(self, profile: str | None = None) -> Any: ...

    def get(self, sandbox_id: str) -> Any: ...

    async def aclose(self) -> None: ...


class SandboxStatistics(Protocol):
    """Counts of one hub's sandboxes; memory_bytes: of all together."""

    @property
    def live(self) -> int: ...

    @property
    def ready(self) -> int: ...

    @property
    def created(self) -> int: ...

    @property
    def memory_bytes(self) -> int | None: ...


class SandboxCheck(Protocol):
    """What a sandbox that was made to see is like. Each finding: what, `ok` or `weaker`, and a sentence."""

    @property
    def findings(self) -> tuple[tuple[str, str, str], ...]: ...


class SandboxProvider(Protocol):
    """All sandboxes of a hub. See `toolhub_sandbox.Sandboxes`."""

    def scope(self, owner: str) -> SandboxScope: ...

    def statistics(self) -> SandboxStatistics: ...

    async def check(self) -> SandboxCheck: ...


SandboxOpener = Callable[..., AbstractAsyncContextManager[SandboxProvider]]


@dataclass(frozen=True, slots=True)
class BuiltinContext:
    """Given to a builtin's factory as the keyword `host`, if it has one; a server that runs alone gets none.

    The factory's module may also have `lacks(**options)`, for what a server was not given though its tools need it:
    `toolhub doctor` calls it. See `toolhub_servers._lacks.Lack`.

    owner: the task's id, or "hub" for a server that all tasks share.
    sandboxes: the owner's `SandboxScope`; the hub closes it when the owner ends. None where no sandbox package is
    installed.
    resources: what all servers of the hub share, such as HTTP pools.
    """

    owner: str
    sandboxes: Any = None
    resources: SharedResources | None = None


def find_sandboxes() -> SandboxOpener | None:
    """Return what opens the installed sandboxes: `open(settings, start_place=...)`; None where there are none."""
    for entry in importlib.metadata.entry_points(group=SANDBOXES):
        opener: SandboxOpener = entry.load()
        return opener
    return None


class Frontend(Protocol):
    """One more way into a served hub: an ASGI application below a path, behind the same guard as the others."""

    @property
    def path(self) -> str:
        """Such as `/llm`."""

    @property
    def app(self) -> Any:
        """An ASGI application; `path` is its root path."""

    def announcement(self) -> str:
        """What to call it in the list that `toolhub serve` prints, e.g. `LLM door`."""

    def collect(self) -> Iterable[Any]:
        """Prometheus metric families."""


FrontendOpener = Callable[[Any], AbstractAsyncContextManager[Frontend | None]]
"""Takes the running `Hub`; None: the configuration does not ask for this door."""


def find_frontends() -> list[FrontendOpener]:
    """Return what opens the doors of installed packages."""
    return [entry.load() for entry in importlib.metadata.entry_points(group=FRONTENDS)]


def find_extension(name: str) -> Callable[..., Any] | None:
    """Return what an installed package adds to a command of toolhub, such as `doctor-llm`; None where none does."""
    for entry in importlib.metadata.entry_points(group=EXTENSIONS, name=name):
        extension: Callable[..., Any] = entry.load()
        return extension
    return None
