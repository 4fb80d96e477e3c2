"""A question answered by `toolhub run` as users start it, with a model server that says what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from llm_stand_in.answers import said
from llm_stand_in.model_server import Seen

CLOCK = {"clock": {"builtin": "clock", "share": "hub"}}


def write_config(folder: Path, **sections: Any) -> Path:
    path = folder / "hub.yaml"
    agent = {"pause_after_failure_s": 0} | sections.pop("agent", {})
    path.write_text(yaml.safe_dump({"servers": CLOCK, "agent": agent, **sections}))
    return path


def start_toolhub(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOOLHUB_")}
    environ = kept | {"XDG_STATE_HOME": str(cwd / "state"), "COLUMNS": "120"}
    command = [sys.executable, "-m", "toolhub", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def toolhub(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    process = start_toolhub(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def use_clock() -> str:
    arguments = json.dumps({"timezone": "UTC"})
    return (
        "<use_mcp_tool><server_name>clock</server_name><tool_name>get_current_time</tool_name>"
        f"<arguments>{arguments}</arguments></use_mcp_tool>"
    )


def look_at_the_clock_then_answer(seen: Seen):
    """Every task calls the clock once and answers with its own question."""
    messages = seen.body["messages"]
    if seen.body.get("max_tokens") == 1:
        return said("w")
    if len(messages) == 2:
        return said(use_clock())
    return said("\\boxed{" + messages[1]["content"].splitlines()[0] + "}")
