"""The external alternative to the browser server: @playwright/mcp as configs/mcp_servers.json starts it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from website.site import Site, site

from testbed import third_party
from toolhub import Hub, parse_config

__all__ = ["site"]
pytestmark = pytest.mark.anyio

DESKTOP = Path(__file__).parents[2] / "configs" / "mcp_servers.json"


def _entry() -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(DESKTOP.read_text())["mcpServers"]["playwright"]
    return entry


def _install(directory: Path) -> None:
    programs = third_party.node_bin()
    directory.mkdir(parents=True)
    quiet = ["--no-fund", "--no-audit", "--loglevel=error"]
    command = [str(programs / "npm"), "install", "--prefix", str(directory), *quiet, _package()]
    third_party.run(command, path=third_party.path_with(programs))


def _package() -> str:
    return str(_entry()["args"][1])


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Any]:
    """The example's entry, switched on, with its package from the test cache instead of from the network."""
    if third_party.chromium() is None:
        is_needed = os.environ.get("CI") or os.environ.get("TOOLHUB_REQUIRE_BROWSER")
        (pytest.fail if is_needed else pytest.skip)("no Chromium")
    entry = _entry()
    prefix = third_party.ensure(third_party.versioned("playwright-mcp", [_package()]), _install)
    flags = [*entry["args"][2:], *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    args = ["--prefix", str(prefix), "--no-install", "--offline", "playwright-mcp", *flags]
    return entry | {"command": third_party.npx(), "args": args, "disabled": False, "cwd": str(tmp_path)}


@pytest.mark.slow
async def test_each_task_browses_in_a_browser_of_its_own(installed: dict[str, Any], site: Site, tmp_path: Path) -> None:
    environ = {"TOOLHUB_CHROMIUM": str(third_party.chromium()), "PATH": os.environ["PATH"]}
    config = parse_config(
        {"hub": {"state_dir": str(tmp_path / "state")}, "mcpServers": {"playwright": installed}}, environ=environ
    )
    with anyio.fail_after(120):
        async with Hub(config) as hub, hub.task("one") as one, hub.task("two") as two:
            opened = await one.call("playwright", "browser_navigate", {"url": f"{site.url}/article"})
            assert not opened.is_error, opened.text
            assert "1.3 million cars" in (await one.call("playwright", "browser_snapshot")).text
            assert "about:blank" in (await two.call("playwright", "browser_tabs", {"action": "list"})).text
