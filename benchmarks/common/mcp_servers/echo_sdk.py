"""An MCP server in the way the SDK's documentation shows: echo, and a ledger of what was executed.

Environment: LEDGER names the file that `ledger` appends to, LEDGER_DELAY the seconds it takes to answer.
"""

from __future__ import annotations

import os

import anyio
from mcp.server import MCPServer

server = MCPServer("echo")


@server.tool()
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool()
async def ledger(key: str) -> str:
    """Write the key down, then take some time."""
    with open(os.environ["LEDGER"], "a") as file:
        file.write(key + "\n")
    await anyio.sleep(float(os.environ.get("LEDGER_DELAY", "0")))
    return key


if __name__ == "__main__":
    server.run()
