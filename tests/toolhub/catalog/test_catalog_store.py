"""What is kept of servers' tools: private, bounded, ignored when in doubt, and never the reason for a failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from in_memory_hub import a_spec

from toolhub.catalog import store as catalog_store
from toolhub.catalog.store import FORMAT, MAX_BYTES, CatalogStore
from toolhub.config import ServerSpec

TOOLS: list[Any] = [
    {"name": "zeta", "inputSchema": {}, "x-vendor": {"a": [1, None]}},
    {"name": "alpha", "description": "ä\ud800"},
]


@pytest.fixture
def store(tmp_path: Path) -> CatalogStore:
    return CatalogStore(tmp_path / "state" / "catalog")


def only_file(store: CatalogStore) -> Path:
    (path,) = store.folder.iterdir()
    return path


def test_another_life_reads_the_same_tools_in_the_same_order(store):
    store.write(a_spec(), TOOLS)
    assert CatalogStore(store.folder).read(a_spec()) == TOOLS


def test_no_tools_is_an_answer_too(store):
    assert store.read(a_spec()) is None
    store.write(a_spec(), [])
    assert store.read(a_spec()) == []


def test_nobody_else_may_read_the_folder_or_its_files(store):
    store.write(a_spec(), TOOLS)
    assert (store.folder.stat().st_mode & 0o777, only_file(store).stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("other", [{"name": "other"}, {"args": ["x"]}, {"env": {"A": "b"}}, {"cwd": "/"}])
def test_servers_that_differ_have_files_of_their_own(store, other):
    store.write(a_spec(), TOOLS)
    assert store.read(a_spec(**other)) is None


def test_all_tasks_of_a_server_have_one_file(store):
    spec = a_spec(env={"TASK": "${task.id}"})
    store.write(spec.for_task({"id": "task-a"}), TOOLS)
    assert store.read(spec.for_task({"id": "task-b"})) == store.read(spec) == TOOLS


def test_a_new_answer_replaces_the_old_one_and_forgetting_removes_it(store):
    store.write(a_spec(), TOOLS)
    store.write(a_spec(), TOOLS[:1])
    assert store.read(a_spec()) == TOOLS[:1]
    store.remove(a_spec())
    store.remove(a_spec())
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"format": FORMAT + 1},
        {"toolhub": "0.0.0"},
        {"server": "other"},
        {"fingerprint": "0"},
        {"surplus": 1},
        {"entries": None},
        {"entries": {}},
        {"entries": ["read"]},
        {"entries": [{"name": 1}]},
    ],
)
def test_a_file_of_another_kind_is_ignored_and_then_replaced(store, change):
    store.write(a_spec(), TOOLS)
    path = only_file(store)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert store.read(a_spec()) is None
    store.write(a_spec(), TOOLS)
    assert store.read(a_spec()) == TOOLS


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b" " * (MAX_BYTES + 1)])
def test_a_corrupted_file_is_ignored_and_then_replaced(store, content):
    store.write(a_spec(), TOOLS)
    only_file(store).write_bytes(content)
    assert store.read(a_spec()) is None
    store.write(a_spec(), TOOLS)
    assert store.read(a_spec()) == TOOLS


def replaced_by_a_link(path: Path) -> None:
    os.rename(path, path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


def replaced_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("tamper", [replaced_by_a_link, replaced_by_a_pipe, lambda path: path.chmod(0o622)])
def test_what_somebody_else_may_have_written_is_ignored(store, tamper):
    store.write(a_spec(), TOOLS)
    tamper(only_file(store))
    assert store.read(a_spec()) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_is_ignored(store):
    store.write(a_spec(), TOOLS)
    os.chown(only_file(store), 12345, 12345)
    assert store.read(a_spec()) is None


def deep() -> list:
    nested: dict = {}
    for _ in range(100_000):
        nested = {"a": nested}
    return [{"name": "deep", "inputSchema": nested}]


@pytest.mark.parametrize("tools", [[{"name": "big", "description": "x" * MAX_BYTES}], deep()], ids=["big", "deep"])
def test_what_is_too_large_is_not_kept_and_neither_is_what_it_replaces(store, tools):
    store.write(a_spec(), TOOLS)
    store.write(a_spec(), tools)
    assert store.read(a_spec()) is None


def a_spec_with_secrets() -> ServerSpec:
    return a_spec(env={"API_KEY": 'sesame "open"', "TASK": "${task.id}"}).for_task({"id": "task-4711"})


@pytest.mark.parametrize("said", ['your key is sesame "open"', "files of task-4711"])
def test_tools_that_repeat_a_secret_or_a_task_s_value_are_not_kept(store, said):
    store.write(a_spec_with_secrets(), [{"name": "read", "description": said}])
    assert store.read(a_spec_with_secrets()) is None


def test_nothing_but_tools_of_a_server_with_secrets_is_written(store):
    store.write(a_spec_with_secrets(), TOOLS)
    text = only_file(store).read_text()
    assert "sesame" not in text and "task-4711" not in text and store.read(a_spec_with_secrets()) == TOOLS


@pytest.mark.parametrize("args", [["run.py"], ["-x", "./bin/run.py"]])
def test_tools_of_a_script_that_was_edited_are_not_shown(store, tmp_path, args):
    script = tmp_path / args[-1]
    script.parent.mkdir(exist_ok=True)
    script.write_text("old")
    spec = a_spec(args=args, cwd=str(tmp_path))
    store.write(spec, TOOLS)
    assert store.read(spec) == TOOLS
    script.write_text("edited")
    assert store.read(spec) is None


def test_the_oldest_files_are_removed_and_what_is_read_counts_as_new(store, monkeypatch):
    monkeypatch.setattr(catalog_store, "MAX_FILES", 3)
    specs = [a_spec(args=[str(number)]) for number in range(5)]
    for number, spec in enumerate(specs[:3]):
        store.write(spec, TOOLS)
        os.utime(store.path(spec), (number, number))
    assert store.read(specs[0]) == TOOLS
    for spec in specs[3:]:
        store.write(spec, TOOLS)
    assert [number for number, spec in enumerate(specs) if store.read(spec)] == [0, 3, 4]


def test_what_a_dead_hub_was_writing_is_removed_in_its_turn(store, monkeypatch):
    monkeypatch.setattr(catalog_store, "MAX_FILES", 1)
    store.folder.mkdir(parents=True)
    (store.folder / "abc.tmp").write_bytes(b"half")
    os.utime(store.folder / "abc.tmp", (0, 0))
    store.write(a_spec(), TOOLS)
    assert only_file(store).suffix == ".json"


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path):
    (tmp_path / "file").write_text("no folder")
    store = CatalogStore(tmp_path / "file" / "catalog")
    store.write(a_spec(), TOOLS)
    assert store.read(a_spec()) is None
    store.remove(a_spec())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_neither_the_old_answer_nor_half_a_new_one(store, monkeypatch):
    store.write(a_spec(), TOOLS)
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(store.folder / "x")))
    store.write(a_spec(), TOOLS[:1])
    assert list(store.folder.iterdir()) == []
