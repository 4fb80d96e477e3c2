"""Drop-in for MiroFlow's and MiroThinker's `ToolManager`: the same class, with tools that stay alive between calls.

    from toolhub.miroflow import ToolManager        # instead of: from miroflow_tools.manager import ToolManager

Needs only the base install, so it lives in an agent's environment beside `mcp<2`. The hub is the one at `hub=` or
TOOLHUB_URL; without either, a private one is started on first use and ends with the process.
"""

from __future__ import annotations

from toolhub.miroflow.outcome import failure_of, normalised
from toolhub.miroflow.profile import PROFILES, Profile
from toolhub.miroflow.tasks import task_id_var
from toolhub.miroflow.tool_manager import ToolManager, ToolManagerProtocol

__all__ = ["PROFILES", "Profile", "ToolManager", "ToolManagerProtocol", "failure_of", "normalised", "task_id_var"]
