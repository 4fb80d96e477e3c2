"""An MCP server with results of every shape. MODE names one way to misbehave before serving.

CALLS names a file that each call to `scrape` and `scrape_website` is noted in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from minimal import Call, Server, append_line, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minimal import Json

BLOCKS = {
    "image": {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    "empty": {"type": "text", "text": ""},
    "first": {"type": "text", "text": "first"},
    "last": {"type": "text", "text": "last"},
}


class Odd(Server):
    """Refuses `tools/call` of the tool `refuse` as a protocol error."""

    def _outcome(self, call: Call) -> Json:
        if call.name == "refuse":
            return {"error": {"code": -32603, "message": "internal trouble"}}
        return super()._outcome(call)


def add_tools(server: Server) -> None:
    @server.tool("blocks", kinds="array")
    def blocks(call: Call) -> Json:
        return {"content": [BLOCKS[kind] for kind in call.arguments["kinds"]]}

    @server.tool("error", text="string")
    def error(call: Call) -> Json:
        return text(call.arguments["text"], is_error=True)

    for name in ("scrape", "scrape_website"):

        @server.tool(name, url="string")
        def scrape(call: Call) -> Json:
            append_line(os.environ["CALLS"], call.arguments["url"])
            return text("page")

    @server.tool("refuse")
    def refuse(call: Call) -> Json:
        raise AssertionError

    @server.tool("where")
    def where(call: Call) -> Json:
        return text(f"{os.getcwd()} {os.environ.get('TASK_ID', '-')} {os.getpid()}")

    @server.tool("meet", path="string", count="integer")
    def meet(call: Call) -> Json:
        """Answers once `count` calls are here at the same time."""
        path, count = call.arguments["path"], call.arguments["count"]
        append_line(path, str(call.id))
        for _ in range(500):
            with open(path) as arrived:
                if len(arrived.readlines()) >= count:
                    return text("met")
            call.cancelled.wait(0.01)
        return text("alone")


if __name__ == "__main__":
    if os.environ.get("MODE") == "dies":
        sys.exit("unhandled errors in a TaskGroup")
    server = Odd("tools")
    add_tools(server)
    server.run()
