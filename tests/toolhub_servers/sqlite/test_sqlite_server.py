"""The SQLite server: one connection, reads that only read, and limits that say what they cut off."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import sqlite_exploit
from anyio import to_thread
from mcp import Client
from server_calls import answer, refusal
from toolhub_servers.confined.process import ConfinedProcess, FunctionRaised, ProcessDied, folder_of_code
from toolhub_servers.sqlite import server as sqlite

from toolhub import Hub, parse_config

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


async def test_state_is_shared_by_the_clients_of_a_server_and_ends_with_the_last() -> None:
    server = sqlite.create_server()
    async with Client(server) as first:
        await ask(first, "execute", "CREATE TABLE t (a)")
        async with Client(server) as second:
            assert (await ask(second, "query", "SELECT count(*) FROM t"))["rows"] == [[0]]
        assert (await ask(first, "query", "SELECT count(*) FROM t"))["rows"] == [[0]]
    async with Client(server) as third:
        assert "no such table: t" in await refusal(third, "query", sql="SELECT * FROM t")


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


async def test_the_process_of_the_database_ends_with_the_server() -> None:
    before = set(children())
    async with Client(sqlite.create_server()) as client:
        await ask(client, "query", "SELECT 1")
        assert len(set(children()) - before) == 2  # the launcher and its child
    assert set(children()) <= before


# --- what a model could do to SQLite and through it -------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["query", "execute"])
@pytest.mark.parametrize(
    "call",
    [
        "fts3_tokenizer('x', x'4141414141414141')",
        "fts3_tokenizer('simple')",
        "FTS3_Tokenizer('simple')",
        "load_extension('libm.so.6')",
        "sqlite_compileoption_get(1)",
        "readfile('/etc/passwd')",
    ],
)
async def test_a_function_that_is_not_known_to_be_harmless_is_refused(client: Client, tool: str, call: str) -> None:
    text = await refusal(client, tool, sql=f"SELECT {call}")
    assert "cannot be used here" in text or "no such function" in text


async def test_a_function_that_is_refused_is_refused_in_a_view_and_in_a_trigger(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a)")
    await ask(client, "execute", "CREATE VIEW v AS SELECT fts3_tokenizer('simple') AS p")
    assert "fts3_tokenizer" in await refusal(client, "query", sql="SELECT p FROM v")
    body = "BEGIN SELECT fts3_tokenizer('simple'); END"
    await ask(client, "execute", f"CREATE TRIGGER r AFTER INSERT ON t {body}")
    assert "fts3_tokenizer" in await refusal(client, "execute", sql="INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("module", ["fts3", "fts4", "FTS3", "fts3tokenize", "dbstat", "csv", "sqlite_dbpage"])
async def test_only_known_kinds_of_virtual_tables_can_be_made(client: Client, module: str) -> None:
    text = await refusal(client, "execute", sql=f"CREATE VIRTUAL TABLE v USING {module}(a, tokenize=x)")
    assert "cannot be used here" in text or "no such module" in text


async def test_full_text_search_works(client: Client) -> None:
    await ask(client, "execute", "CREATE VIRTUAL TABLE v USING fts5(a)")
    await ask(client, "execute", "INSERT INTO v VALUES ('the lamp is lit')")
    found = "SELECT highlight(v, 0, '[', ']') FROM v WHERE v MATCH 'lamp' ORDER BY bm25(v)"
    assert (await ask(client, "query", found))["rows"] == [["the [lamp] is lit"]]


@pytest.mark.parametrize(
    "pragma",
    [
        "writable_schema = ON",
        "trusted_schema = ON",
        "max_page_count = 1000000",
        "page_size = 65536",
        "cache_size = 1000000",
        "mmap_size = 1000000000",
        "temp_store = FILE",
        "temp_store_directory = '/etc'",
        "hard_heap_limit = 0",
        "soft_heap_limit = 0",
        "journal_mode = OFF",
        "database_list",
        "writable_schema",
    ],
)
async def test_a_pragma_that_lifts_a_bound_is_refused(client: Client, pragma: str) -> None:
    assert "cannot be used here" in await refusal(client, "execute", sql=f"PRAGMA {pragma}")
    assert "use execute" in await refusal(client, "query", sql=f"PRAGMA {pragma}")


async def test_a_pragma_that_shows_the_schema_works(client: Client) -> None:
    await ask(client, "execute", "CREATE TABLE t (a INTEGER)")
    assert (await ask(client, "execute", "PRAGMA table_info(t)"))["rows"][0][:3] == [0, "a", "INTEGER"]
    assert (await ask(client, "execute", "PRAGMA journal_mode"))["rows"] == [["memory"]]


@pytest.mark.parametrize("kind", ["TABLE", "TEMP TABLE"])
async def test_a_database_does_not_become_larger_than_it_may(kind: str) -> None:
    async with Client(sqlite.create_server(max_database_bytes=8 << 20)) as client:
        await ask(client, "execute", f"CREATE {kind} t (a)")
        for _ in range(6):
            await ask(client, "execute", "INSERT INTO t VALUES (zeroblob(1000000))")
        text = await refusal(client, "execute", sql="INSERT INTO t VALUES (zeroblob(3000000))")
        assert "max_database_bytes" in text
        assert (await ask(client, "query", "SELECT count(*) FROM t"))["rows"] == [[6]]


async def test_a_database_file_does_not_become_larger_than_it_may(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with Client(sqlite.create_server(str(file), max_database_bytes=4 << 20)) as client:
        await ask(client, "execute", "CREATE TABLE t (a)")
        await ask(client, "execute", "INSERT INTO t VALUES (zeroblob(2000000))")
        assert "max_database_bytes" in await refusal(client, "execute", sql="INSERT INTO t SELECT zeroblob(3000000)")
        assert (await ask(client, "execute", "VACUUM")) == {"rows_changed": 0}
    assert file.stat().st_size <= 4 << 20


async def test_large_values_take_no_memory_of_the_hub(client: Client) -> None:
    """Two inserts took 1.3 GB."""
    await ask(client, "execute", "CREATE TABLE t (a)")
    before = resident_bytes()
    for _ in range(3):
        await ask(client, "execute", "INSERT INTO t VALUES (zeroblob(16000000))")
    await refusal(client, "execute", sql="INSERT INTO t SELECT zeroblob(16000000) FROM t")
    await ask(client, "query", "SELECT a, substr(a, 2) FROM t")
    assert resident_bytes() - before < 16 << 20


async def test_a_statement_that_needs_too_much_memory_is_refused_and_the_next_one_runs(client: Client) -> None:
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    sql = f"{rows} SELECT group_concat(hex(zeroblob(i * 100))) FROM n"
    await ask(client, "execute", "CREATE TABLE t (a)")
    text = await refusal(client, "query", sql=f"{rows} SELECT i, randomblob(1000000) AS b FROM n ORDER BY b")
    assert "more memory" in text or "stopped after" in text
    assert "too big" in await refusal(client, "query", sql=sql)
    assert (await ask(client, "query", "SELECT count(*) FROM t"))["rows"] == [[0]]


async def test_a_result_is_bounded_whatever_the_number_of_columns(client: Client) -> None:
    cells = ", ".join(["printf('%.*c', 4096, 'x')"] * 50)
    text = await answer(client, "query", sql=f"SELECT {cells} FROM (VALUES (1), (2), (3))")
    assert len(text) < 300_000 and "only the first 1 rows" in text


@pytest.mark.parametrize("path", [":memory:", "a.db"])
async def test_a_crash_of_sqlite_costs_its_process_and_is_told(tmp_path: Path, path: str) -> None:
    path = path if path == ":memory:" else str(tmp_path / path)
    before = set(children())
    async with Client(sqlite.create_server(path)) as client:
        await ask(client, "execute", "CREATE TABLE t (a)")
        launcher = next(child for child in set(children()) - before if child.ppid() == os.getpid())
        (worker,) = launcher.children()
        worker.kill()
        text = await refusal(client, "execute", sql="INSERT INTO t VALUES (1)")
        assert "the database process died: it was ended by SIGKILL" in text and "state_lost" in text
        left = (await ask(client, "query", "SELECT count(*) FROM sqlite_schema"))["rows"]
        assert left == [[0 if path == ":memory:" else 1]]


async def test_the_exploit_itself_ends_only_the_process_that_it_runs_in() -> None:
    """Without the authorizer: some builds of SQLite have the function, and then it is a jump to any address."""
    process = ConfinedProcess(code=folder_of_code(sqlite_exploit.jump_anywhere))
    with pytest.raises((ProcessDied, FunctionRaised)) as told:
        await to_thread.run_sync(
            partial(process.call, sqlite_exploit.jump_anywhere, timeout=30, memory_bytes=256 << 20)
        )
    assert "SIGSEGV" in str(told.value) or "OperationalError" in str(told.value)
    process.close()


async def test_the_process_of_a_database_file_sees_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_text("secret")
    process = ConfinedProcess(
        code=folder_of_code(sqlite_exploit.listed), writable=str(tmp_path / "folder"), file_bytes=1 << 20
    )
    call = partial(process.call, sqlite_exploit.listed, str(tmp_path), timeout=30, memory_bytes=256 << 20)
    assert await to_thread.run_sync(call) == ["folder"]
    process.close()


async def test_a_database_lives_in_a_folder_of_another_user_if_the_hub_is_root(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    owner = 12_345 if os.geteuid() == 0 else os.geteuid()
    os.chown(folder, owner, -1)
    async with Client(sqlite.create_server(str(folder / "a.db"))) as client:
        await ask(client, "execute", "CREATE TABLE t (a)")
    assert (folder / "a.db").stat().st_uid == owner


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


async def test_in_a_hub_a_crash_of_sqlite_costs_one_task_its_database_and_no_other_task_anything() -> None:
    config = {"servers": {"db": {"builtin": "sqlite"}}}
    with anyio.fail_after(60):
        async with Hub(parse_config(config)) as hub, hub.task("a") as first, hub.task("b") as second:
            for task in (second, first):
                before = set(children())
                await task.call("db", "execute", {"sql": "CREATE TABLE t (a)"})
            launcher = next(child for child in set(children()) - before if child.ppid() == os.getpid())
            launcher.children()[0].kill()
            died = await first.call("db", "execute", {"sql": "INSERT INTO t VALUES (1)"})
            assert "the database process died" in str(died) and "state_lost" in str(died)
            kept = await second.call("db", "query", {"sql": "SELECT count(*) FROM t"})
            assert "[[0]]" in str(kept)
    assert not [child for child in children() if child.is_running() and child == launcher]
