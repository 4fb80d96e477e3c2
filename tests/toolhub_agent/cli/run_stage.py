"""A question answered by `toolhub run` as users start it, with a model server that says what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from in_process import Done, run_main
from llm_stand_in.answers import said
from llm_stand_in.model_server import Seen

from toolhub.cli import main

CLOCK = {"clock": {"builtin": "clock", "share": "hub"}}


def write_config(folder: Path, **sections: Any) -> Path:
    path = folder / "hub.yaml"
    agent = {"pause_after_failure_s": 0} | sections.pop("agent", {})
    path.write_text(yaml.safe_dump({"servers": CLOCK, "agent": agent, **sections}))
    return path


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOOLHUB_")}
    return kept | {"XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "120"}


def start_toolhub(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "toolhub", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(cwd), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def toolhub(*arguments: str | Path, cwd: Path) -> Done:
    return run_main(main, ["toolhub", *map(str, arguments)], folder=cwd, env=environment(cwd))


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
