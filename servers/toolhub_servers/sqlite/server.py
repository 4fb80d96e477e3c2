"""An MCP server for one SQLite database.

In-memory tables, temporary tables and an open transaction belong to the server's one connection. They survive from call
to call, and are lost when the server ends. SQLite runs in a confined process of the server's own: a statement that
crashes it loses this connection's state and nothing else. Statements run one at a time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from toolhub_servers.confined.process import CallTimeout, ConfinedProcess, FunctionRaised, NotConfined, ProcessDied
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server, make_tool
from toolhub_servers.sqlite import database as inside
from toolhub_servers.sqlite.database import Parameters

IN_MEMORY = ":memory:"
# Long enough for a scan over about 100 MB, short enough to notice a join without a condition.
STATEMENT_TIMEOUT = 10.0
MAX_DATABASE_BYTES = 64 << 20
# SQLite stops a late statement itself. If it cannot, as inside a single function, the process is killed.
GRACE_S = 20.0
# For the interpreter and the text of a result, in addition to what SQLite may use.
PYTHON_BYTES = 192 << 20

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(destructive_hint=True, open_world_hint=False)


def create_server(
    path: str = IN_MEMORY,
    *,
    statement_timeout: float = STATEMENT_TIMEOUT,
    max_database_bytes: int = MAX_DATABASE_BYTES,
) -> MCPServer:
    """Return the server. max_database_bytes: the largest size of the database, without temporary tables.

    Raises ValueError for unusable options, such as a path where no database can be.
    """
    database = DatabaseProcess(path, statement_timeout=statement_timeout, max_database_bytes=max_database_bytes)

    async def query(sql: str, parameters: Parameters | None = None) -> str:
        """Run one SELECT and return its rows as JSON (at most 1000). `parameters` fill the ? in it."""
        return await database.ask(inside.query, sql, parameters)

    async def execute(sql: str, parameters: Parameters | None = None) -> str:
        """Run one statement of any kind, such as CREATE, INSERT or UPDATE. `parameters` fill the ? in it."""
        return await database.ask(inside.execute, sql, parameters)

    async def tables() -> str:
        """List the tables and views with the SQL that made them, as JSON."""
        sql = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
        return await database.ask(inside.query, sql, None)

    tools = [
        make_tool(query, annotations=READ_ONLY),
        make_tool(execute, annotations=WRITES),
        make_tool(tables, annotations=READ_ONLY),
    ]
    return make_server("toolhub-sqlite", tools=tools, lifespan=database.lifespan)


class DatabaseProcess:
    """The process with the connection. The first statement starts it, and it ends when the last client leaves."""

    def __init__(self, path: str, *, statement_timeout: float, max_database_bytes: int) -> None:
        self._path = path if path == IN_MEMORY else os.path.realpath(path)
        self._timeout = statement_timeout
        self._max_bytes = max_database_bytes
        self._turn = anyio.Lock()
        self._process: ConfinedProcess | None = None
        self._clients = 0
        if max_database_bytes <= 0:
            raise ValueError(f"max_database_bytes is {max_database_bytes}; it has to be positive")
        if self._path != IN_MEMORY:
            _check(self._path)

    def __repr__(self) -> str:
        return f"<DatabaseProcess {self._path}, {self._process or 'closed'}>"

    @asynccontextmanager
    async def lifespan(self, _server: Any) -> AsyncIterator[None]:
        """End the process when the last client leaves."""
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            if not self._clients and self._process is not None:
                with anyio.CancelScope(shield=True):  # `close` has its own deadline
                    await to_thread.run_sync(self._process.close)
                self._process = None

    async def ask(self, function: Callable[..., str], sql: str, parameters: Parameters | None) -> str:
        """Run a function of `database.py`. Raises ToolError with a text for the model."""
        async with self._turn:
            return await to_thread.run_sync(self._ask, function, sql, parameters)

    def _ask(self, function: Callable[..., str], sql: str, parameters: Parameters | None) -> str:
        try:
            process = self._opened()
            return str(self._call(process, function, sql, parameters))
        except FunctionRaised as exc:
            raise ToolError(exc.message if exc.kind == inside.StatementRefused.__name__ else f"SQLite: {exc}") from exc
        except (ProcessDied, CallTimeout) as exc:
            self._process = None
            raise ToolError(f"the database process died: {exc}. {self._lost()}") from exc
        except NotConfined as exc:
            raise ToolError(str(exc)) from exc

    def _opened(self) -> ConfinedProcess:
        if self._process is None:
            is_file = self._path != IN_MEMORY
            process = ConfinedProcess(
                writable=os.path.dirname(self._path) if is_file else None,
                # The journal may become as large as the database, and both have a header.
                file_bytes=max(2 * self._max_bytes, self._size() + self._max_bytes) + (1 << 20) if is_file else 0,
            )
            try:
                self._call(process, inside.open_database, self._path, self._timeout, self._max_bytes)
            except FunctionRaised as exc:
                process.close()
                raise ToolError(f"database {self._path!r} cannot be opened: {exc.message}") from exc
            self._process = process
        return self._process

    def _call(self, process: ConfinedProcess, function: Callable[..., Any], *args: Any) -> Any:
        timeout = self._timeout + inside.BUSY_TIMEOUT + GRACE_S
        memory_bytes = self._max_bytes + inside.WORKING_BYTES + PYTHON_BYTES
        return process.call(function, *args, timeout=timeout, memory_bytes=memory_bytes)

    def _size(self) -> int:
        return os.path.getsize(self._path) if os.path.exists(self._path) else 0

    def _lost(self) -> str:
        if self._path == IN_MEMORY:
            return "Everything in it is lost (state_lost); the next statement starts with an empty database"
        return (
            "An open transaction and temporary tables are lost (state_lost); "
            "the next statement sees the file as it was committed last"
        )


def _check(path: str) -> None:
    """Check the path. Raises ValueError. SQLite itself opens the file later, in its process."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise ValueError(f"database {path!r} cannot be opened: {str(folder)!r} is not a folder")
    if Path(path).is_dir():
        raise ValueError(f"database {path!r} cannot be opened: it is a folder")
    if folder == Path("/"):
        raise ValueError(f"database {path!r} cannot be opened: it has to be in a folder, which SQLite's process sees")


def main() -> None:
    parser = make_parser("sqlite", "Runs SQL on one SQLite database.")
    parser.add_argument("--path", default=IN_MEMORY, help="the database file")
    parser.add_argument("--statement-timeout", type=float, default=STATEMENT_TIMEOUT, help="seconds")
    parser.add_argument("--max-database-bytes", type=int, default=MAX_DATABASE_BYTES, help="size of the database")
    serve(parser, create_server)
