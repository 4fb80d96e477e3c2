"""Sandboxes: isolated places where a model's code runs and keeps its state between calls.

`open_sandboxes()` gives a `Sandboxes` with a warm pool per profile. Inside a hub it is opened for you:
`task.sandboxes`. Nothing heavy is imported before it is used: the programs inside a sandbox import this package too.
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

_HOMES = {
    "toolhub_sandbox.errors": (
        "FileError",
        "SandboxError",
        "SandboxLimit",
        "SandboxLost",
        "SandboxNotFound",
        "SandboxUnavailable",
    ),
    "toolhub_sandbox.model": ("CommandResult", "Display", "Execution", "Failure", "Isolation", "SandboxInfo"),
    "toolhub_sandbox.protocol": ("HOME", "Backend", "Sandbox"),
    "toolhub_sandbox.sandboxes": ("OwnerSandboxes", "Sandboxes", "open_sandboxes"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "HOME",
    "Backend",
    "CommandResult",
    "Display",
    "Execution",
    "Failure",
    "FileError",
    "Isolation",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxLimit",
    "SandboxLost",
    "SandboxNotFound",
    "OwnerSandboxes",
    "SandboxUnavailable",
    "Sandboxes",
    "open_sandboxes",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'toolhub_sandbox' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
