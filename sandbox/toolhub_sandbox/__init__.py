"""Sandboxes: isolated places where a model's code runs and keeps its state between calls.

    import asyncio
    from toolhub_sandbox import Sandboxes


    async def main() -> None:
        async with Sandboxes() as sandboxes:
            sandbox = await sandboxes.create()
            await sandbox.exec_code("x = 41")
            execution = await sandbox.exec_code("x + 1")
            print(execution.result, execution.error)
            command = await sandbox.run_command("echo hi; exit 3")
            print(command.stdout, command.exit_code)
            await sandbox.put("data/a.txt", b"from outside")
            print(await sandbox.get("data/a.txt"))


    asyncio.run(main())

`Sandboxes(settings)` takes the section `sandbox` of a config (`toolhub.config.SandboxSettings`).
In a hub, each task has sandboxes of its own: `task.sandboxes`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_sandbox.errors import (
        FileError,
        SandboxError,
        SandboxLimit,
        SandboxLost,
        SandboxNotFound,
        SandboxUnavailable,
    )
    from toolhub_sandbox.model import CommandResult, Display, Execution, Failure, Isolation, SandboxInfo
    from toolhub_sandbox.protocol import HOME, Backend, Sandbox
    from toolhub_sandbox.sandboxes import OwnerSandboxes, Sandboxes, open_sandboxes

__all__ = [
    "HOME",
    "Backend",
    "CommandResult",
    "Display",
    "Execution",
    "Failure",
    "FileError",
    "Isolation",
    "OwnerSandboxes",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxLimit",
    "SandboxLost",
    "SandboxNotFound",
    "SandboxUnavailable",
    "Sandboxes",
    "open_sandboxes",
]
# The programs inside a sandbox import this package too, with none of ours beside it. So nothing is imported before use.
_MODULES = ("errors", "model", "protocol", "sandboxes")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            loaded = importlib.import_module(f"toolhub_sandbox.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module 'toolhub_sandbox' has no attribute {name!r}")
