"""A manager's servers on the hub: where each comes from, their tools, and calls to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any

import anyio

from toolhub.client import RemoteHub, RemoteTask
from toolhub.errors import CallTimeout, ConfigError, ToolhubError
from toolhub.miroflow.params import Setting, entry_of
from toolhub.miroflow.profile import Profile
from toolhub.miroflow.tasks import HubSource, NoHub, Tasks, task_id_var
from toolhub.model import Json, Result, ToolInfo
from toolhub.task_ids import check_task_id

# Longer than a server may take to start, so that its own diagnosis arrives first.
_LISTING_S = 180.0


class Choice(Enum):
    """Which servers a manager uses: those of the hub's config, those of its own `params`, or both."""

    HUB = "hub"
    MINE = "mine"
    HUB_THEN_MINE = "hub-then-mine"

    @classmethod
    def of(cls, value: str) -> Choice:
        """Read the setting. Raises ConfigError."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(
                f"TOOLHUB_SERVERS (or ToolManager's servers=) is {value!r}; it must be hub, mine or hub-then-mine"
            ) from None


class Servers:
    """params: by name, as the configs have them; None for a server that only the hub has. Read when a task is opened.

    run: the label under which the hub shares fairly. max_instances: processes per server.
    on_origins: told once, and again when it changes, where each server comes from; None for nobody.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        source: HubSource,
        profile: Profile,
        *,
        choice: Choice,
        token: str | None,
        run: str,
        max_instances: int,
        on_origins: Callable[[str], None] | None,
    ) -> None:
        self._params = params
        self._profile = profile
        self._choice = choice
        self._max_instances = max_instances
        self._on_origins = on_origins
        self._said = ""
        self._of_hub: frozenset[str] = frozenset()
        self._unusable: Mapping[str, Exception] = {}
        self._tasks = Tasks(source, self._open, token=token, run=run)

    def __repr__(self) -> str:
        return f"<Servers {list(self._params)} {self._tasks}>"

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool in the task at hand. Raises what is wrong with the server's parameters, and ToolhubErrors."""
        limit = self._profile.timeout

        async def call(task: RemoteTask) -> Result:
            self._require_usable(server, task)
            if server not in self._of_hub:
                return await task.call(server, tool, arguments, timeout=limit)
            # The hub's config knows how long its own server may take; the profile only bounds it.
            with anyio.move_on_after(limit):
                return await task.call(server, tool, arguments)
            message = f"server {server!r} did not answer {tool!r} within {limit:g} s"
            raise CallTimeout(message, timeout=limit, server=server, tool=tool)

        return await self._tasks.use(self._task_id(), call)

    async def tools(self, server: str) -> list[ToolInfo]:
        """Return the server's tools. Raises like `call()`, and TimeoutError."""

        async def ask(task: RemoteTask) -> list[ToolInfo]:
            self._require_usable(server, task)
            return await task.tools(server)

        with anyio.move_on_after(_LISTING_S):
            return await self._tasks.use(self._task_id(), ask)
        raise TimeoutError(f"server '{server}' did not list its tools within {_LISTING_S:g} s")

    async def having(self, tool: str) -> list[str]:
        """Return the servers that have a tool. Servers that cannot be asked are left out."""
        found: dict[str, bool] = {}

        async def look(server: str) -> None:
            try:
                found[server] = tool in {info.name for info in await self.tools(server)}
            except Exception:
                found[server] = False

        async with anyio.create_task_group() as looking:
            for server in self._params:
                looking.start_soon(look, server)
        return [server for server in self._params if found[server]]

    async def require_hub(self) -> None:
        """Raise NoHub if no hub was ever reached and none can be. The calls report every other problem."""
        if self._tasks.was_reached:
            return

        async def nothing(task: RemoteTask) -> None:
            pass

        try:
            await self._tasks.use(self._task_id(), nothing)
        except NoHub:
            raise
        except ToolhubError:
            pass

    async def aclose(self) -> None:
        """End what this process has open."""
        await self._tasks.aclose()

    # --- opening a task ---------------------------------------------------------------------------------------------

    def _open(self, hub: RemoteHub, task_id: str | None, *, run: str, lease: float) -> RemoteTask:
        """Open a task with all servers that can be used; a call to another finds out why it cannot. Blocks."""
        offered = [] if self._choice is Choice.MINE else hub.server_names_blocking()
        cwd = _directory() if hub.address.is_local else None
        setting = Setting(self._profile.timeout, self._max_instances, cwd, task_id)
        entries: dict[str, Json | None] = {}
        unusable: dict[str, Exception] = {}
        for name in self._params:
            try:
                entries[name] = self._entry(name, offered, hub, setting)
            except (TypeError, ConfigError) as exc:
                unusable[name] = exc
        task = hub.open_task_blocking(run=run, servers=entries, only_these=True, partial=True, lease=lease)
        unusable |= {name: ConfigError(str(exc)) for name, exc in task.refused.items()}
        self._unusable = unusable
        self._of_hub = frozenset(name for name, entry in entries.items() if entry is None)
        self._tell_origins(hub)
        return task

    def _entry(self, server: str, offered: Collection[str], hub: RemoteHub, setting: Setting) -> Json | None:
        """Return the hub's entry for a server of the manager's own, or None to use the hub's server of that name."""
        params = self._params[server]
        if server in offered:
            return None
        known = f"the hub at {hub.address} has no server {server!r} (it has: {', '.join(offered) or 'none'})"
        if self._choice is Choice.HUB:
            raise ConfigError(
                f"{known}, and TOOLHUB_SERVERS=hub leaves out the manager's own. Put {server!r} into the hub's config, "
                "or set TOOLHUB_SERVERS=hub-then-mine"
            )
        if params is None:
            reason = "TOOLHUB_SERVERS=mine leaves out the hub's servers" if self._choice is Choice.MINE else known
            raise ConfigError(
                f"server {server!r} has no params, so it must be one of the hub's, but {reason}. Give it params, or "
                "put it into the config of a hub, start that with `toolhub serve` and set TOOLHUB_URL"
            )
        return entry_of(server, params, setting)

    def _tell_origins(self, hub: RemoteHub) -> None:
        width = max(map(len, self._params), default=0)
        rows = [f"  {name:<{width}}  {self._origin(name)}" for name in self._params]
        said = f"servers of this ToolManager ({self._choice.value}, hub at {hub.address}):\n" + "\n".join(rows)
        if self._on_origins is not None and said != self._said:
            self._said = said
            self._on_origins(said)

    def _origin(self, server: str) -> str:
        if server in self._unusable:
            return f"cannot be used: {self._unusable[server]}"
        return "the hub's config" if server in self._of_hub else "the manager's own params"

    def _require_usable(self, server: str, task: RemoteTask) -> None:
        """Raise what is wrong with a server's parameters if it was left out for that."""
        if server not in task.servers and (problem := self._unusable.get(server)) is not None:
            raise type(problem)(str(problem))

    def _task_id(self) -> str | None:
        """The agent task at hand. Raises ConfigError if its id is not allowed."""
        task_id = task_id_var.get() if self._profile.has_task_id else None
        return None if task_id is None else check_task_id(task_id)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return None
