"""The SQLite server: one connection, reads that only read, and limits that say what they cut off."""

from __future__ import annotations

import gc
import json
import sqlite3
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from calling import answer, refusal
from mcp import Client
from toolhub_servers import sqlite

pytestmark = [pytest.mark.anyio, pytest.mark.quick]
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(sqlite.create_server()) as client:
        yield client


async def ask(client: Client, tool: str, sql: str, *parameters: Any) -> Any:
    return json.loads(await answer(client, tool, sql=sql, parameters=list(parameters)))


async def test_a_table_survives_from_call_to_call(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a, b)")
    changed = await ask(client, "execute", "INSERT INTO t VALUES (?, ?), (3, NULL)", 1, "é")
    assert changed == {"rows_changed": 2}
    told = await ask(client, "query", "SELECT * FROM t WHERE a > ?", 0)
    assert told == {"columns": ["a", "b"], "rows": [[1, "é"], [3, None]]}


async def test_state_belongs_to_the_server_and_not_to_the_client_session() -> None:
    server = sqlite.create_server()
    async with Client(server) as first:
        await ask(first, "execute", "CREATE TABLE t (a)")
    async with Client(server) as second:
        assert await ask(second, "query", "SELECT count(*) FROM t") == {
            "columns": ["count(*)"],
            "rows": [[0]],
        }


async def test_a_second_server_starts_without_the_state_of_the_first(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    async with Client(sqlite.create_server()) as other:
        assert "no such table: t" in await refusal(other, "query", sql="SELECT * FROM t")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "DROP TABLE t",
        "PRAGMA query_only = OFF",
        "BEGIN",
        "ATTACH ':memory:' AS other",
    ],
)
async def test_query_refuses_whatever_could_write(client: Client, sql: str) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    await ask(client, "execute", "INSERT INTO t VALUES (7)")
    assert "use execute for anything else" in await refusal(client, "query", sql=sql)
    assert (await ask(client, "query", "SELECT * FROM t"))["rows"] == [[7]]


async def test_a_statement_allowed_to_execute_is_still_refused_by_query(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    await ask(client, "execute", "INSERT INTO t VALUES (1)")
    await refusal(client, "query", sql="INSERT INTO t VALUES (1)")
    assert (await ask(client, "query", "SELECT count(*) FROM t"))["rows"] == [[1]]


async def test_execute_reaches_no_other_database_file(client: Client, tmp_path: Path) -> None:
    file = str(tmp_path / "other.db")
    for sql in ("ATTACH ? AS other", "VACUUM INTO ?"):
        text = await refusal(client, "execute", sql=sql, parameters=[file])
        assert "other database files cannot be used" in text
    for sql in (f"ATTACH '{file}' AS other", f"ATTACH '{file}' || '' AS other", f"VACUUM INTO '{file}'"):
        assert "other database files cannot be used" in await refusal(client, "execute", sql=sql)
    assert list(tmp_path.iterdir()) == []


async def test_vacuum_is_no_other_database_file(tmp_path: Path) -> None:
    async with Client(sqlite.create_server(str(tmp_path / "a.db"))) as client:
        assert await ask(client, "execute", "VACUUM") == {"rows_changed": 0}


async def test_execute_returns_the_rows_a_statement_gives(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    told = await ask(client, "execute", "INSERT INTO t VALUES (5) RETURNING a")
    assert told == {"columns": ["a"], "rows": [[5]]}


async def test_a_failed_transaction_can_be_rolled_back_in_a_later_call(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    await ask(client, "execute", "BEGIN")
    await ask(client, "execute", "INSERT INTO t VALUES (1)")
    await ask(client, "execute", "ROLLBACK")
    assert (await ask(client, "query", "SELECT count(*) FROM t"))["rows"] == [[0]]


async def test_tables_lists_tables_and_views_with_their_sql(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    await ask(client, "execute", "CREATE VIEW v AS SELECT a FROM t")
    told = json.loads(await answer(client, "tables"))
    assert told["rows"] == [
        ["table", "t", "CREATE TABLE t (a)"],
        ["view", "v", "CREATE VIEW v AS SELECT a FROM t"],
    ]


async def test_an_endless_statement_is_stopped_and_the_next_one_runs() -> None:
    async with Client(sqlite.create_server(statement_timeout=0)) as client:
        for tool in ("query", "execute"):
            assert "stopped after 0 s" in await refusal(client, tool, sql=ENDLESS)
        assert (await ask(client, "query", "SELECT 1"))["rows"] == [[1]]


async def test_more_rows_than_the_limit_are_cut_off_with_a_note(client: Client) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n"
    all_of_them = await ask(client, "query", numbers, 1000)
    assert len(all_of_them["rows"]) == 1000 and "note" not in all_of_them
    cut_off = await ask(client, "query", numbers, 1001)
    assert len(cut_off["rows"]) == 1000 and "only the first 1000 rows" in cut_off["note"]


async def test_values_that_json_lacks_are_spelled_out(client: Client) -> None:
    told = await ask(client, "query", "SELECT x'00ff', 9e999, -9e999, 1.5")
    assert told["rows"] == [["x'00ff'", "inf", "-inf", 1.5]]


async def test_a_long_value_is_cut_off_with_its_length(client: Client) -> None:
    ((value,),) = (await ask(client, "query", "SELECT printf('%.*c', 5000, 'x')"))["rows"]
    assert value == "x" * 4096 + "... [5000 characters]"


@pytest.mark.parametrize(
    ("sql", "parameters", "reason"),
    [
        ("SELEC 1", [], "syntax error"),
        ("SELECT 1; SELECT 2", [], "one statement at a time"),
        ("SELECT ?", [], "Incorrect number of bindings"),
        ("SELECT ?", [2**70], "too large"),
        ("SELECT 'a\0b'", [], "null character"),
        ("SELECT zeroblob(100000000)", [], "too big"),
    ],
)
async def test_a_mistake_is_refused_with_the_words_of_sqlite(
    client: Client, sql: str, parameters: list[Any], reason: str
) -> None:
    assert reason in await refusal(client, "query", sql=sql, parameters=parameters)


async def test_a_database_that_cannot_be_opened_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be opened"):
        sqlite.create_server(str(tmp_path / "no" / "such" / "dir.db"))


async def test_the_connection_is_closed_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    server = weakref.ref(sqlite.create_server())
    gc.collect()
    assert server() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
