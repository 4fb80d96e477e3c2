"""An environment like MiroThinker's: SDK 1 beside what the thin client needs, and no hub."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from miroflow_agents import CHECKOUT

from testbed import third_party


def search_path() -> str:
    """Return a PYTHONPATH that adds the checkout and its base dependencies to the Python of `mcp1_python()`."""
    site_packages = next(_base_venv().glob("lib/python*/site-packages"))
    return os.pathsep.join([str(CHECKOUT), str(site_packages)])


def _base_venv() -> Path:
    return third_party.ensure_venv("toolhub-base", base_dependencies())


def base_dependencies() -> tuple[str, ...]:
    """What the base install needs."""
    return tuple(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"])
