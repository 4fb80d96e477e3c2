"""Environments of agents, made of real packages: installed once per list of pins, kept in the test cache.

A test that changes one takes a copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import third_party

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Agent:
    """An agent's environment: what is installed there, and what the agent imports."""

    pins: tuple[str, ...]
    imports: str
    python: str = ""


AGENTS = {
    # The versions of its uv.lock.
    "mirothinker": Agent(
        (
            "mcp==1.10.1",
            "fastmcp==2.10.1",
            "pydantic==2.11.7",
            "anyio==4.9.0",
            "openai==1.78.1",
            "rich==14.0.0",
            "typer==0.16.0",
            "httpcore==1.0.9",
        ),
        "mcp, fastmcp, openai",
        python="3.12",
    ),
    # The versions of its uv.lock.
    "miroflow": Agent(
        (
            "mcp==1.12.2",
            "fastmcp==2.10.6",
            "pydantic==2.11.7",
            "anyio==4.9.0",
            "openai==1.78.1",
            "anthropic==0.60.0",
            "rich==14.1.0",
            "httpcore==1.0.9",
        ),
        "mcp, fastmcp, openai, anthropic",
        python="3.12",
    ),
    "openai-agents": Agent(("openai-agents==0.24.0",), "mcp, openai, agents"),
    "langgraph": Agent(
        (
            "langgraph==1.2.22",
            "langchain==1.4.7",
            "langchain-openai==1.7.3",
            "langchain-mcp-adapters==0.3.2",
        ),
        "mcp, langgraph.graph, langchain.agents, langchain_mcp_adapters.client",
    ),
    "pydantic-ai": Agent(("pydantic-ai-slim[mcp,openai]==2.68.0",), "mcp, pydantic_ai.mcp"),
    "fastmcp": Agent(("fastmcp==4.1.2",), "mcp, fastmcp"),
    "anthropic": Agent(("anthropic==2.12.0",), "anthropic"),
    # The lowest versions that the thin client takes.
    "lowest": Agent(("anyio==4.5.0", "h11==0.14.0"), "anyio, h11"),
}


def agent_environment(name: str) -> Path:
    """Return the environment of one of AGENTS, installed if it is not there yet. It must not be changed."""
    agent = AGENTS[name]
    return third_party.agent_venv(f"agent-{name}", agent.pins, version=agent.python)


@contextmanager
def copied_environment(name: str, folder: Path) -> Iterator[Path]:
    """A copy of the environment, for a test that installs something there. It ends with the block."""
    original, copy = agent_environment(name), folder / name
    shutil.copytree(original, copy, symlinks=True)
    # `pip` of the copy would else run the original's Python, and change the original.
    for program in (copy / "bin").iterdir():
        if not program.is_symlink() and (text := program.read_bytes()).startswith(b"#!"):
            program.write_bytes(text.replace(bytes(original), bytes(copy)))
    yield copy
    shutil.rmtree(copy)


def build_wheel(folder: Path) -> Path:
    """Return the wheel of this checkout."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        text=True,
    )
    return next(folder.glob("toolhub_runtime-*.whl"))
