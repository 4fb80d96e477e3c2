"""A manager's servers on the hub: which ones there are, their tools, and calls to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import anyio

from toolhub.client import RemoteTask
from toolhub.client.address import Address
from toolhub.config.interpolate import check_task_id
from toolhub.errors import ConfigError
from toolhub.miroflow.params import Setting, entry_of
from toolhub.miroflow.profile import Profile
from toolhub.miroflow.tasks import Source, Tasks, task_id_var
from toolhub.model import Json, Result, ToolInfo

# Longer than a server may take to start, so that its own diagnosis arrives first.
_LISTING_S = 180.0


class Servers:
    """params: by name, as the configs have them; read when a task is opened. max_instances: processes per server."""

    def __init__(
        self, params: Mapping[str, Any], source: Source, profile: Profile, *, token: str | None, max_instances: int
    ) -> None:
        self._params = params
        self._profile = profile
        self._max_instances = max_instances
        self._tasks = Tasks(source, self._entries, token=token)

    def __repr__(self) -> str:
        return f"<Servers {list(self._params)} {self._tasks}>"

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool in the task at hand. Raises what is wrong with the server's parameters, and ToolhubErrors."""

        async def call(task: RemoteTask) -> Result:
            self._require_usable(server, task)
            return await task.call(server, tool, arguments, timeout=self._profile.timeout)

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
        """Return the servers that have a tool; those that cannot be asked do not count."""
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

    async def aclose(self) -> None:
        """End what this process has open."""
        await self._tasks.aclose()

    def _entries(self, address: Address, task_id: str | None) -> dict[str, Json]:
        """The servers for the hub at `address`; a call to one that cannot be used finds out why."""
        cwd = _directory() if address.is_local else None
        entries = {}
        for name in self._params:
            try:
                entries[name] = self._entry(name, cwd, task_id)
            except (TypeError, ConfigError):
                continue
        return entries

    def _entry(self, server: str, cwd: str | None = None, task_id: str | None = None) -> Json:
        setting = Setting(self._profile.timeout, self._max_instances, cwd, task_id)
        return entry_of(server, self._params[server], setting)

    def _require_usable(self, server: str, task: RemoteTask) -> None:
        """Raise what is wrong with a server's parameters if it was left out for that."""
        if server not in task.servers:
            self._entry(server)

    def _task_id(self) -> str | None:
        """The agent task at hand. Raises ConfigError if its id is not allowed."""
        task_id = task_id_var.get() if self._profile.has_task_id else None
        return None if task_id is None else check_task_id(task_id)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return None
