"""Where a Python server gets its sandboxes: from its hub or, when it runs alone, from its own backend."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.mcpserver.exceptions import ToolError
from toolhub_sandbox import Execution, OwnerSandboxes, Sandbox, Sandboxes

from toolhub.config import SandboxSettings, load_config
from toolhub.errors import ConfigError
from toolhub.extensions import BuiltinContext

# Killing takes about 10 to 100 ms. A sandbox that takes longer is left to its backend.
KILL_TIMEOUT = 10.0


class TaskSandboxes:
    """One owner's sandboxes.

    In a hub they belong to the task, and the hub ends them. In a server that runs alone, `lifespan` opens them for one
    session at a time and ends them with it.
    """

    def __init__(self, context: BuiltinContext | None, profile: str | None, settings: SandboxSettings | None) -> None:
        if context is None:
            settings = settings or SandboxSettings()
            if profile is not None and profile not in settings.profiles:
                raise ValueError(f"profile {profile!r} is not known; there are {', '.join(sorted(settings.profiles))}")
        self._settings = settings
        self._profile = profile
        self._is_hosted = context is not None
        self._scope: OwnerSandboxes | None = context.sandboxes if context is not None else None

    def __repr__(self) -> str:
        return (
            f"<TaskSandboxes of {self._profile or 'the default profile'}, {'hosted' if self._is_hosted else 'alone'}>"
        )

    @asynccontextmanager
    async def lifespan(self, _server: Any) -> AsyncIterator[None]:
        """The lifespan of the server. The backend starts with the first sandbox, so this costs nothing."""
        if self._is_hosted:
            yield
            return
        async with Sandboxes(self._settings) as sandboxes:
            self._scope = scope = sandboxes.for_owner("server")
            try:
                yield
            finally:
                self._scope = None
                with anyio.move_on_after(KILL_TIMEOUT, shield=True):
                    await scope.aclose()

    async def create(self) -> Sandbox:
        """Create a sandbox. Raises SandboxLimit, SandboxUnavailable; ToolError if there are no sandboxes here."""
        return await self._require_scope().create(self._profile)

    def get(self, sandbox_id: str) -> Sandbox:
        """Find a sandbox.

        Raises SandboxNotFound, also for another owner's; ToolError if there are no sandboxes here.
        """
        return self._require_scope().get(sandbox_id)

    async def run_once(self, code: str) -> Execution:
        """Run code in a new sandbox, which ends afterwards in any case. Raises SandboxError."""
        sandbox = await self.create()
        try:
            return await sandbox.exec_code(code)
        finally:
            with anyio.move_on_after(KILL_TIMEOUT, shield=True):
                await sandbox.kill()

    def _require_scope(self) -> OwnerSandboxes:
        if self._scope is None:
            raise ToolError(
                "this server has no sandboxes: the hub that runs it gave it none (context.sandboxes is None); "
                "install toolhub with its sandboxes and see the 'sandbox' section of the config"
                if self._is_hosted
                else "this server has no sandboxes: it is not running"
            )
        return self._scope


def add_sandbox_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a toolhub config; its section 'sandbox' is used")
    parser.add_argument("--profile", metavar="NAME", help="the kind of sandbox; without it the config's default")


def read_settings(config: str | None) -> SandboxSettings | None:
    """Return the `sandbox` section of a config file. Raises ValueError if it cannot be used."""
    try:
        return load_config(config).sandbox if config else None
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
