"""An MCP server that runs Python code in a sandbox of its own for each call: MiroFlow's `stateless_python`.

The code runs once, and the sandbox is gone when the call ends, however it ends.
"""

from __future__ import annotations

from mcp.server import MCPServer
from toolhub_sandbox import SandboxError

from toolhub.config import SandboxSettings
from toolhub.extensions import BuiltinContext
from toolhub_servers.python import texts as text
from toolhub_servers.python.sandboxes import TaskSandboxes, add_sandbox_arguments, read_settings
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server, make_tool


def create_server(
    *, context: BuiltinContext | None = None, profile: str | None = None, settings: SandboxSettings | None = None
) -> MCPServer:
    """Return the server; the parameters are those of `python.create_server`. Raises ValueError."""
    sandboxes = TaskSandboxes(context, profile, settings)

    async def python(code: str) -> str:
        """Run Python code that keeps nothing, as a help for your own reasoning; the user sees neither code nor output.

        Use `print` for everything you want to see. The environment is not shared between calls: give the whole code,
        with its imports and definitions, every time.

        Args:
            code: The Python code.

        Returns:
            A text with the results, stdout, stderr and the error, if there was one. Long output is cut.
        """
        try:
            return text.format_execution(await sandboxes.run_once(code))
        except SandboxError as exc:
            return text.stateless_failed(exc)

    tools = [make_tool(python)]
    return make_server("toolhub-stateless-python", tools=tools, lifespan=sandboxes.lifespan)


def create_from_options(config: str | None, profile: str | None) -> MCPServer:
    """`create_server` with the sandboxes of a config file. Raises ValueError also for an unusable config."""
    return create_server(profile=profile, settings=read_settings(config))


def main() -> None:
    parser = make_parser("stateless_python", "Runs Python code, each time in a sandbox of its own.")
    add_sandbox_arguments(parser)
    serve(parser, create_from_options)
