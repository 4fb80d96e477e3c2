"""An MCP server in the way the SDK's documentation shows, with one tool that answers as a plan says.

    python research.py search|scrape|python PLAN

PLAN: a JSON file that gives each query its ``{"seconds", "text"}``. A server of these kinds imports no more than this.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

KIND, PLAN = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
server = MCPServer(KIND, log_level="WARNING")


@server.tool(name=KIND, annotations=ToolAnnotations(read_only_hint=KIND != "python"), structured_output=False)
async def look_up(q: str) -> str:
    """Finds what it is asked for."""
    planned = PLAN[q]
    await anyio.sleep(planned["seconds"])
    return str(planned["text"])


if __name__ == "__main__":
    server.run()
