"""An MCP server for one SQLite database.

The server owns one connection, so what lives in it (in-memory tables, temporary tables, an open transaction)
survives from call to call and is lost when the process dies. Statements run one at a time, in a thread.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
import weakref
from collections.abc import Callable
from typing import Any

import anyio
from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from toolhub_servers._command import command, serve
from toolhub_servers._tools import make_server, make_tool

Parameters = list[str | int | float | bool | None]

MAX_ROWS = 1000
MAX_CELL_CHARACTERS = 4096
MAX_VALUE_BYTES = 16 << 20
# Long enough for a scan over some 100 MB, short enough to notice a join without a condition.
STATEMENT_TIMEOUT = 10.0
# Another process may hold the database file locked for a moment.
BUSY_TIMEOUT = 5.0
# How many virtual machine instructions between two looks at the clock; some 0.1 ms.
PROGRESS_STEPS = 10_000

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(destructive_hint=True, open_world_hint=False)

Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


def create_server(path: str = ":memory:", *, statement_timeout: float = STATEMENT_TIMEOUT) -> MCPServer:
    """Return the server. Raises ValueError if the database cannot be opened."""
    database = Database(path, statement_timeout=statement_timeout)
    lock = anyio.Lock()

    async def query(sql: str, parameters: Parameters | None = None) -> str:
        """Run one SELECT and return its rows as JSON (at most 1000). `parameters` fill the ? in it."""
        async with lock:
            return await to_thread.run_sync(database.query, sql, parameters)

    async def execute(sql: str, parameters: Parameters | None = None) -> str:
        """Run one statement of any kind, such as CREATE, INSERT or UPDATE. `parameters` fill the ? in it."""
        async with lock:
            return await to_thread.run_sync(database.execute, sql, parameters)

    async def tables() -> str:
        """List the tables and views with the SQL that made them, as JSON."""
        async with lock:
            return await to_thread.run_sync(database.tables)

    tools = [
        make_tool(query, annotations=READ_ONLY),
        make_tool(execute, annotations=WRITES),
        make_tool(tables, annotations=READ_ONLY),
    ]
    server = make_server("toolhub-sqlite", tools=tools)
    weakref.finalize(server, database.close)
    return server


class Database:
    """One connection. Methods block, must not overlap, and raise ToolError with a text for the model."""

    def __init__(self, path: str, *, statement_timeout: float) -> None:
        self._path = path
        self._timeout = statement_timeout
        self._deadline = math.inf
        try:
            # Autocommit: a transaction is open only if the model began one. No statement cache, because a
            # statement is authorized when it is compiled.
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=0
            )
        except sqlite3.Error as exc:
            raise ValueError(f"database {path!r} cannot be opened: {exc}") from exc
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        self._connection.set_progress_handler(self._is_late, PROGRESS_STEPS)

    def __repr__(self) -> str:
        return f"<Database {self._path}>"

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, parameters: Parameters | None) -> str:
        return json.dumps(self._run(sql, parameters, only_reads), ensure_ascii=False)

    def execute(self, sql: str, parameters: Parameters | None) -> str:
        return json.dumps(self._run(sql, parameters, this_database_only), ensure_ascii=False)

    def tables(self) -> str:
        sql = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
        return self.query(sql, None)

    def _run(self, sql: str, parameters: Parameters | None, authorizer: Authorizer) -> dict[str, Any]:
        self._connection.set_authorizer(authorizer)
        self._deadline = time.monotonic() + self._timeout
        try:
            cursor = self._connection.execute(sql, parameters or [])
            rows = cursor.fetchmany(MAX_ROWS + 1)
        # Warning: more than one statement (Python 3.11). OverflowError: an integer beyond 64 bits.
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as exc:
            raise ToolError(self._explain(exc, authorizer)) from exc
        finally:
            self._deadline = math.inf
        return _result(cursor, rows)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _explain(self, exc: Exception, authorizer: Authorizer) -> str:
        code = getattr(exc, "sqlite_errorname", "")
        if code == "SQLITE_INTERRUPT":
            return f"stopped after {self._timeout:g} s; narrow the statement down"
        if code == "SQLITE_AUTH" and authorizer is only_reads:
            return "query runs only SELECT; use execute for anything else"
        if code == "SQLITE_AUTH":
            return f"other database files cannot be used: {exc}"
        return f"SQLite: {exc}"


def only_reads(action: int, *_: str | None) -> int:
    """Authorize what a SELECT does."""
    return sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY


def this_database_only(action: int, file: str | None, *_: str | None) -> int:
    """Authorize everything but attaching a file. VACUUM attaches ""; a computed name shows as None."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH and file != "" else sqlite3.SQLITE_OK


def _result(cursor: sqlite3.Cursor, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    if cursor.description is None:
        return {"rows_changed": max(cursor.rowcount, 0)}
    result: dict[str, Any] = {
        "columns": [column[0] for column in cursor.description],
        "rows": [[_cell(value) for value in row] for row in rows[:MAX_ROWS]],
    }
    if len(rows) > MAX_ROWS:
        result["note"] = f"only the first {MAX_ROWS} rows are shown; use LIMIT and OFFSET for more"
    return result


def _cell(value: Any) -> Any:
    """Return the value as JSON can carry it."""
    if isinstance(value, bytes):
        value = f"x'{value.hex()}'"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > MAX_CELL_CHARACTERS:
        return f"{value[:MAX_CELL_CHARACTERS]}... [{len(value)} characters]"
    return value


def main() -> None:
    parser = command("sqlite", "Runs SQL on one SQLite database.")
    parser.add_argument("--path", default=":memory:", help="the database file")
    parser.add_argument("--statement-timeout", type=float, default=STATEMENT_TIMEOUT, help="seconds")
    serve(parser, create_server)


if __name__ == "__main__":
    main()
