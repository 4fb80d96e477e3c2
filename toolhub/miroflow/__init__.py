"""Drop-in for MiroFlow's and MiroThinker's `ToolManager`: the same class, with tools that stay alive between calls.

    from toolhub.miroflow import ToolManager        # instead of: from miroflow_tools.manager import ToolManager

Needs only the base install, so it lives in an agent's environment beside `mcp<2`. The hub is the one at `hub=` or
TOOLHUB_URL; without either, a private one is started on first use and ends with the process.

Environment variables, each with a parameter of `ToolManager` that overrules it:

    TOOLHUB_URL       address of a running hub: http://host:port or unix:///path/hub.sock
    TOOLHUB_TOKEN     bearer token for that hub
    TOOLHUB_SERVERS   hub, mine or hub-then-mine (default): the hub's servers, those of the `params`, or the hub's where
                      it has one of that name. A config `{"name": "x"}` without params always means the hub's.
    TOOLHUB_RUN       label of this run; the hub shares what is scarce fairly between runs
    TOOLHUB_COMMAND   the command that starts a private hub, such as "/opt/toolhub/bin/toolhub"
    TOOLHUB_TOLERANT  1: without any hub, calls answer with an error instead of raising `NoHub`
"""

from __future__ import annotations

from toolhub.miroflow.outcome import failure_of, normalised
from toolhub.miroflow.profile import PROFILES, Profile
from toolhub.miroflow.tasks import NoHub, task_id_var
from toolhub.miroflow.tool_manager import ToolManager, ToolManagerProtocol

__all__ = [
    "PROFILES",
    "NoHub",
    "Profile",
    "ToolManager",
    "ToolManagerProtocol",
    "failure_of",
    "normalised",
    "task_id_var",
]
