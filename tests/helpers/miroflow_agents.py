"""What the tests of the drop-in share: server parameters, a log that remembers, agents as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub.miroflow import ToolManager

    Make = Callable[..., ToolManager]
else:
    Make = Callable[..., Any]

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
CHECKOUT = HERE.parents[1]


@dataclass
class Params:
    """Looks like `mcp.StdioServerParameters` of any version."""

    command: str
    args: list[str] = field(default_factory=list)
    env: dict[str, str | None] | None = None
    cwd: str | Path | None = None
    encoding: str = "utf-8"


def echo_params(**env: str | None) -> Params:
    return Params(sys.executable, ["-S", str(FIXTURES / "echo.py")], env)


def tool_params(**env: str | None) -> Params:
    return Params(sys.executable, ["-S", str(HERE / "miroflow_tool_server.py")], env)


def config(name: str, params: Any) -> dict[str, Any]:
    return {"name": name, "params": params}


class TaskLog:
    """Keeps what is logged as (level, step, message, metadata)."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str, Any]] = []

    def log_step(self, level: str, step_name: str, message: str, metadata: Any) -> None:
        self.steps.append((level, step_name, message, metadata))


def agent(script: str, *args: str, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run an agent in a process of its own, warnings as errors, and return what became of it."""
    return subprocess.run(
        [python, "-W", "error", "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=CHECKOUT,
        env=clean_environment() | environ,
    )


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
