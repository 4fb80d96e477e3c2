"""What a builtin server gets from the hub that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Host:
    """Given to a builtin's factory as the keyword `host`, if it has one; a server that runs alone gets none.

    owner: the task's id, or "hub" for a server that all tasks share.
    sandboxes: the owner's `toolhub_sandbox.SandboxScope`; the hub closes it when the owner ends. None where the
    sandboxes are not installed.
    """

    owner: str
    sandboxes: Any = None
