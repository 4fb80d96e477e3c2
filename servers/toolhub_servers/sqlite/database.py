"""The database of the SQLite server, inside the confined process: one connection, and which statements may run."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable
from typing import Any

Parameters = list[str | int | float | bool | None]

MAX_ROWS = 1000
MAX_CELL_CHARACTERS = 4096
MAX_RESULT_CHARACTERS = 256 << 10
MAX_NAME_CHARACTERS = 200
MAX_VALUE_BYTES = 16 << 20
MAX_SQL_BYTES = 1 << 20
# Another process may hold the database file locked for a moment.
BUSY_TIMEOUT = 5.0
# Virtual machine instructions between two checks of the time; about 0.1 ms.
PROGRESS_STEPS = 10_000
# What sorting, temporary tables and an index need in addition to the database itself.
WORKING_BYTES = 64 << 20

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
# The functions of https://sqlite.org/lang_corefunc.html and the pages beside it, except those that load code, take or
# give an address in memory (as fts3_tokenizer does), or reveal something about the host.
FUNCTIONS = frozenset(
    """
    abs changes char coalesce concat concat_ws format glob hex if ifnull iif instr last_insert_rowid length like
    likelihood likely lower ltrim match max min nullif octet_length printf quote random randomblob replace round rtrim
    sign soundex substr substring total_changes trim typeof unhex unicode unistr unistr_quote unlikely upper zeroblob
    sqlite_version
    date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
    avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
    row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
    acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power
    radians sin sinh sqrt tan tanh trunc
    json json_array json_array_length json_array_insert json_error_position json_extract json_insert json_object
    json_patch json_pretty json_quote json_remove json_replace json_set json_type json_valid json_group_array
    json_group_object jsonb jsonb_array jsonb_array_insert jsonb_extract jsonb_insert jsonb_object jsonb_patch
    jsonb_remove jsonb_replace jsonb_set jsonb_group_array jsonb_group_object -> ->>
    bm25 highlight snippet
    """.split()
)
# Without FTS3 and FTS4: their code is old, and their tables can be made to call any address.
TABLE_MODULES = frozenset({"fts5", "rtree"})
# From https://sqlite.org/pragma.html: pragmas that show the schema or check the data, with or without an argument ...
PRAGMAS = frozenset(
    """
    table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check foreign_keys
    defer_foreign_keys recursive_triggers integrity_check quick_check user_version application_id optimize
    """.split()
)
# ... and those whose value may be read but not changed.
SHOWN_PRAGMAS = frozenset(
    """
    auto_vacuum collation_list data_version encoding freelist_count journal_mode max_page_count page_count page_size
    """.split()
)

Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


class StatementRefused(Exception):
    """The statement was refused or failed. The text is for the model."""


_database: Database | None = None


def open_database(path: str, statement_timeout: float, max_database_bytes: int) -> None:
    """Open the one database of this process. Raises StatementRefused."""
    global _database
    _database = Database(path, statement_timeout=statement_timeout, max_database_bytes=max_database_bytes)


def query(sql: str, parameters: Parameters | None) -> str:
    """Run a statement that only reads. Return its rows as JSON. Raises StatementRefused."""
    return _opened().run(sql, parameters, only_reads)


def execute(sql: str, parameters: Parameters | None) -> str:
    """Run a statement that may change this database. Return its rows or their number as JSON.

    Raises StatementRefused.
    """
    return _opened().run(sql, parameters, this_database_only)


def _opened() -> Database:
    if _database is None:
        raise RuntimeError("the database is not open")
    return _database


class Database:
    """One connection."""

    def __init__(self, path: str, *, statement_timeout: float, max_database_bytes: int) -> None:
        self._timeout = statement_timeout
        self._deadline = math.inf
        self._denied = ""
        try:
            # Autocommit: a transaction is open only if the model began one. No statement cache, because statements are
            # authorized when they are compiled.
            self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, cached_statements=0)
            _bound(self._connection, max_database_bytes)
        except sqlite3.Error as exc:
            raise StatementRefused(str(exc)) from exc
        self._connection.set_progress_handler(self._is_late, PROGRESS_STEPS)

    def run(self, sql: str, parameters: Parameters | None, authorizer: Authorizer) -> str:
        """Return the result as JSON. Raises StatementRefused."""
        self._denied = ""
        self._connection.set_authorizer(self._noting(authorizer))
        self._deadline = time.monotonic() + self._timeout
        try:
            return _result(self._connection.execute(sql, parameters or []))
        # Warning: more than one statement (Python 3.11). OverflowError: an integer beyond 64 bits.
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError, MemoryError) as exc:
            raise StatementRefused(self._explain(exc, authorizer)) from exc
        finally:
            self._deadline = math.inf

    def _noting(self, authorizer: Authorizer) -> Authorizer:
        def authorize(action: int, first: str | None, second: str | None, *rest: str | None) -> int:
            verdict = authorizer(action, first, second, *rest)
            if verdict == sqlite3.SQLITE_DENY and not self._denied:
                self._denied = _what(action, first, second)
            return verdict

        return authorize

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _explain(self, exc: Exception, authorizer: Authorizer) -> str:
        code = getattr(exc, "sqlite_errorname", "")
        if code == "SQLITE_INTERRUPT":
            return f"stopped after {self._timeout:g} s; narrow the statement down"
        if code == "SQLITE_FULL":
            return "the database is full (the option max_database_bytes); delete something first"
        if isinstance(exc, MemoryError) or code == "SQLITE_NOMEM":
            return "the statement needs more memory than it may use; narrow it down"
        if self._denied.startswith("the SQL function"):
            return f"{self._denied} cannot be used here"
        if self._denied and authorizer is only_reads:
            return "query runs only SELECT; use execute for anything else"
        if self._denied:
            return f"{self._denied} cannot be used here: {exc}"
        return f"SQLite: {exc}"


def _bound(connection: sqlite3.Connection, max_database_bytes: int) -> None:
    """Limit what statements may use, and close access to SQLite's own memory where the library allows that."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)  # VACUUM needs one
    for switch, value in (
        ("SQLITE_DBCONFIG_DEFENSIVE", True),
        ("SQLITE_DBCONFIG_TRUSTED_SCHEMA", False),
        ("SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER", False),
        ("SQLITE_DBCONFIG_WRITABLE_SCHEMA", False),
    ):
        if hasattr(connection, "setconfig") and hasattr(sqlite3, switch):  # Python 3.12
            connection.setconfig(getattr(sqlite3, switch), value)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # temporary files would have no limit
    connection.execute(f"PRAGMA hard_heap_limit = {max_database_bytes + WORKING_BYTES}")
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    pages = max(max_database_bytes // page_bytes, 1)
    for schema in ("main", "temp"):
        connection.execute(f"PRAGMA {schema}.max_page_count = {pages}")


def only_reads(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Authorize the actions of a SELECT."""
    match action:
        case sqlite3.SQLITE_FUNCTION:
            is_good = _is_function(second)
        case sqlite3.SQLITE_PRAGMA:
            is_good = first == "data_version" and second is None  # FTS5 needs it
        case _:
            is_good = action in READS
    return sqlite3.SQLITE_OK if is_good else sqlite3.SQLITE_DENY


def this_database_only(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Authorize statements on this database. Functions, pragmas and virtual tables must be known as harmless.

    VACUUM attaches ""; a computed name is None.
    """
    match action:
        case sqlite3.SQLITE_ATTACH:
            is_good = first == ""
        case sqlite3.SQLITE_FUNCTION:
            is_good = _is_function(second)
        case sqlite3.SQLITE_PRAGMA:
            name = (first or "").lower()
            is_good = name in PRAGMAS or (name in SHOWN_PRAGMAS and second is None)
        case sqlite3.SQLITE_CREATE_VTABLE:
            is_good = (second or "").lower() in TABLE_MODULES
        case _:
            is_good = True
    return sqlite3.SQLITE_OK if is_good else sqlite3.SQLITE_DENY


def _is_function(name: str | None) -> bool:
    return (name or "").lower() in FUNCTIONS


def _what(action: int, first: str | None, second: str | None) -> str:
    match action:
        case sqlite3.SQLITE_FUNCTION:
            return f"the SQL function {second}"
        case sqlite3.SQLITE_PRAGMA:
            return f"the pragma {first}" if second is None else f"the pragma {first} with a value"
        case sqlite3.SQLITE_CREATE_VTABLE:
            return f"the virtual table module {second}"
        case sqlite3.SQLITE_ATTACH:
            return "other database files"
        case _:
            return "that"


def _result(cursor: sqlite3.Cursor) -> str:
    """Return the result of a statement as JSON, cut where it gets too long."""
    if cursor.description is None:
        return json.dumps({"rows_changed": max(cursor.rowcount, 0)})
    columns = json.dumps([column[0][:MAX_NAME_CHARACTERS] for column in cursor.description], ensure_ascii=False)
    rows: list[str] = []
    left = MAX_RESULT_CHARACTERS - len(columns)
    note = ""
    for row in cursor:
        text = json.dumps([_cell(value) for value in row], ensure_ascii=False) if len(rows) < MAX_ROWS else ""
        left -= len(text)
        if len(rows) == MAX_ROWS or left < 0:
            note = f"only the first {len(rows)} rows are shown; use LIMIT and OFFSET for more"
            break
        rows.append(text)
    cursor.close()
    told = f', "note": {json.dumps(note)}' if note else ""
    return f'{{"columns": {columns}, "rows": [{", ".join(rows)}]{told}}}'


def _cell(value: Any) -> Any:
    """Return the value in a form that JSON has."""
    if isinstance(value, bytes):
        shown = f"x'{value[: MAX_CELL_CHARACTERS // 2].hex()}'"
        return shown if len(value) <= MAX_CELL_CHARACTERS // 2 else f"{shown}... [{len(value)} bytes]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > MAX_CELL_CHARACTERS:
        return f"{value[:MAX_CELL_CHARACTERS]}... [{len(value)} characters]"
    return value
