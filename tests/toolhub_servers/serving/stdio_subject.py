"""The server of the tests of our stdio transport: what its tools do, prints included, is what the tests are about."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from mcp.server import MCPServer
from toolhub_servers.serving import stdio as _stdio
from toolhub_servers.serving.program import make_parser, serve


def say(word: str) -> None:
    print(word, file=sys.stderr, flush=True)


@asynccontextmanager
async def lifespan(_: MCPServer) -> AsyncIterator[None]:
    say("opened")
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        say("closed")


server = MCPServer("subject", log_level="ERROR", lifespan=lifespan)


@server.tool(structured_output=False)
async def echo(text: str) -> str:
    return text


@server.tool(structured_output=False)
async def chatter() -> str:
    """Print, and let a child print and read."""
    print("printed", flush=True)
    child = subprocess.run([sys.executable, "-c", "print('child read', repr(input()))"], stderr=subprocess.PIPE)
    return child.stderr.decode().strip().splitlines()[-1]


@server.tool(structured_output=False)
async def unwritable() -> str:
    return "\ud800"


@server.tool(structured_output=False)
async def wait() -> str:
    say("waiting")
    await anyio.sleep_forever()
    return ""


if __name__ == "__main__":
    if "--uvloop" in sys.argv:
        anyio.run(functools.partial(_stdio.serve_stdio, server), backend_options={"use_uvloop": True})
    else:
        serve(make_parser("subject", "Is looked at."), lambda: server)
