"""What a hub changes in the MCP SDK: only once one starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.quick

PROGRAM = """
import anyio, mcp.client.sse, mcp.shared.jsonrpc_dispatcher as dispatcher
before = dispatcher._ABANDON_WRITE_TIMEOUT, mcp.client.sse.sse_within_origin
import toolhub.hub
assert (dispatcher._ABANDON_WRITE_TIMEOUT, mcp.client.sse.sse_within_origin) == before, "importing changed the SDK"

async def main():
    async with toolhub.hub.Hub():
        assert dispatcher._ABANDON_WRITE_TIMEOUT == 1.0
        assert mcp.client.sse.sse_within_origin.keywords == {"max_event_size": None}

anyio.run(main)
"""


def test_importing_toolhub_leaves_the_sdk_as_it_is_and_starting_a_hub_adapts_it(tmp_path):
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
