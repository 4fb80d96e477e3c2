"""How other packages plug into a hub, by entry points. The protocols here are all that the hub knows of them.

There are two groups. `toolhub.servers` has the builtin servers by their short names; any package may add some.
`toolhub.extensions` has everything else, by kind:

    sandboxes       the function that opens the hub's sandboxes (`SandboxOpener`)
    frontend-NAME   a function that opens another HTTP endpoint of a served hub (`FrontendOpener`)
    commands-NAME   a function that adds commands to the command line; it gets the typer application
    doctor-NAME, demo-NAME   functions behind an option of these commands
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from toolhub.shared_resources import SharedResources

SERVERS = "toolhub.servers"
EXTENSIONS = "toolhub.extensions"


class OwnerSandboxes(Protocol):
    """The sandboxes of one owner; they end with it. See `toolhub_sandbox.OwnerSandboxes`."""

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
    """What was found in a sandbox that was created to check it. A finding: name, `ok` or `weaker`, a sentence."""

    @property
    def findings(self) -> tuple[tuple[str, str, str], ...]: ...


class SandboxProvider(Protocol):
    """All sandboxes of a hub. See `toolhub_sandbox.Sandboxes`."""

    def for_owner(self, owner: str) -> OwnerSandboxes: ...

    def statistics(self) -> SandboxStatistics: ...

    async def check(self) -> SandboxCheck: ...


SandboxOpener = Callable[..., AbstractAsyncContextManager[SandboxProvider]]


@dataclass(frozen=True, slots=True)
class BuiltinContext:
    """Given to the factory of a builtin server as the keyword `context`, if it has that parameter.

    The factory's module may also have `missing_options(**options)`. It returns the options that are not set although
    tools need them, and `toolhub doctor` calls it. See `toolhub_servers.serving.options.MissingOption`.

    owner: the task's id, or "hub" for a server that all tasks share.
    sandboxes: the owner's `OwnerSandboxes`; the hub closes it when the owner ends. None where no sandbox package is
    installed.
    resources: what all servers of the hub share, such as HTTP pools.
    """

    owner: str
    sandboxes: Any = None
    resources: SharedResources | None = None


@functools.cache  # it reads the metadata of every installed package, and every start of a builtin asks
def builtin_servers() -> dict[str, str]:
    """The installed builtin servers: `package.module:factory` by short name, such as `clock`."""
    return {entry.name: entry.value for entry in _entry_points(SERVERS)}


def find_builtin(target: str) -> tuple[str, str]:
    """Return module and factory of a builtin server, given its short name or `package.module:factory`.

    Raises LookupError for a short name that no installed package has.
    """
    if ":" not in target:
        try:
            target = builtin_servers()[target]
        except KeyError:
            raise LookupError(
                f"no installed package has a server called {target!r}; `toolhub servers` lists those that there are"
            ) from None
    module, _, factory = target.partition(":")
    return module, factory


def find_sandboxes() -> SandboxOpener | None:
    """Return the installed sandbox package's opener, `open(settings, start_limiter=...)`; None if there is none."""
    return find_extension("sandboxes")


class Frontend(Protocol):
    """Another HTTP endpoint of a served hub: an ASGI application below a path, behind the same guard as the others."""

    @property
    def path(self) -> str:
        """Such as `/llm`."""

    @property
    def app(self) -> Any:
        """An ASGI application; `path` is its root path."""

    def announcement(self) -> str:
        """Its name in the list that `toolhub serve` prints, e.g. `LLM proxy`."""

    def collect(self) -> Iterable[Any]:
        """Prometheus metric families."""


FrontendOpener = Callable[[Any], AbstractAsyncContextManager[Frontend | None]]
"""Takes the running `Hub`. Yields None where the config does not ask for this frontend."""


def find_extensions(kind: str) -> list[Callable[..., Any]]:
    """Return all extensions of a kind, such as `frontend`, of the installed packages."""
    return [entry.load() for entry in _entry_points(EXTENSIONS) if entry.name.startswith(f"{kind}-")]


def find_extension(name: str) -> Callable[..., Any] | None:
    """Return one extension, such as `doctor-llm`; None if no installed package has it."""
    for entry in _entry_points(EXTENSIONS).select(name=name):
        extension: Callable[..., Any] = entry.load()
        return extension
    return None


def _entry_points(group: str) -> EntryPoints:
    from importlib.metadata import entry_points  # takes 15 ms, which most commands need not pay

    return entry_points(group=group)
