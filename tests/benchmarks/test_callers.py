"""Each way of calling does what its row says: right answers, and as many processes of the server as it claims."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.baselines import FASTMCP, LANGCHAIN, Baseline
from benchmarks.common.callers import http_client, hub_entry
from benchmarks.common.hub_process import HttpHub
from benchmarks.common.result import Json
from benchmarks.common.server_commands import ServerCommand, lean_echo
from benchmarks.common.subprocess_worker import Worker, WorkerFailed
from benchmarks.common.variants import Variant, start, version_notes
from benchmarks.overhead import benchmark as overhead

# An event loop more is no other variant.
VARIANTS = tuple(variant for variant in overhead.VARIANTS if not variant.uvloop)
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=[variant.opener for variant in VARIANTS])
ABSENT = Baseline("a-package-that-is-nowhere", "make it", ("a-package-that-is-nowhere==1",))


Started = tuple[dict[Variant, Worker], list[str], Path]


def noted(starts: Path) -> ServerCommand:
    """The lean server, which adds a line to `starts` for every process of it."""
    server = lean_echo()
    return replace(server, argv=["/bin/sh", "-c", f'echo >> "{starts}"; exec "$@"', "sh", *server.argv])


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Every way that is installed, side by side, with the notes on the others and where servers note their starts."""
    starts, notes = tmp_path_factory.mktemp("ways") / "starts", list[str]()
    with ExitStack() as stack:
        found = start(noted(starts), VARIANTS, stack, notes)
        yield found, notes, starts
    assert [worker.left_behind for worker in found.values()] == [0] * len(found)


def is_missing(variant: Variant) -> bool:
    return variant.environment is not None and variant.environment.python() is None


@each_variant
@pytest.mark.slow
def test_a_variant_answers_or_is_named_with_what_installs_it(variant: Variant, workers: Started) -> None:
    found, notes, _ = workers
    if is_missing(variant):
        assert variant not in found and variant.environment is not None
        assert any(variant.label in note and variant.environment.command in note for note in notes)
        return
    # Every answer is compared with what was asked; a wrong one would end the worker.
    assert found[variant].ask({"calls": 4, "in_flight": 2})["calls"] == 4


@pytest.mark.slow
def test_every_variant_is_a_process_group_of_its_own(workers: Started) -> None:
    found, _, _ = workers
    groups = {os.getpgid(worker.pid) for worker in found.values()}
    assert groups == {worker.pid for worker in found.values()}


@each_variant
@pytest.mark.slow
def test_a_variant_starts_a_server_for_every_call_only_if_its_row_says_so(variant: Variant, workers: Started) -> None:
    found, _, starts = workers
    if is_missing(variant):
        return  # named, as the test above says
    found[variant].ask({"calls": 1, "in_flight": 1})  # toolhub starts a server at the first call
    before = len(starts.read_text().splitlines())
    found[variant].ask({"calls": 4, "in_flight": 2})
    assert len(starts.read_text().splitlines()) - before == (4 if variant.spawns else 0)


# One for each way of looking at an answer.
@pytest.mark.parametrize("opener", ["floor", "sdk", "embedded", "langchain_session"])
@pytest.mark.slow
def test_a_wrong_answer_ends_the_run(opener: str) -> None:
    (variant,) = (variant for variant in VARIANTS if variant.opener == opener)
    if is_missing(variant):
        return  # named, as the first test says
    server = replace(lean_echo(), numbered="", expected="what nobody says")
    with ExitStack() as stack:
        worker = start(server, (variant,), stack, [])[variant]
        with pytest.raises(WorkerFailed, match="nobody says"):
            worker.ask({"calls": 1, "in_flight": 1})


@pytest.mark.anyio
@pytest.mark.slow
async def test_over_http_toolhub_gives_each_session_a_server_and_fastmcps_proxy_shares_one(tmp_path: Path) -> None:
    server = noted(tmp_path / "ours").to_json()
    with HttpHub({"echo": hub_entry(server)}) as hub:
        assert await processes_for_two_sessions(hub.address, server, tmp_path / "ours") == 2
    if FASTMCP.python() is None:
        return  # named, as the first test says
    server = noted(tmp_path / "theirs").to_json()
    with Worker("benchmarks.common.hub_process:open_fastmcp_proxy", {"entry": hub_entry(server)}) as proxy:
        assert await processes_for_two_sessions(proxy.ask({})["address"], server, tmp_path / "theirs") == 1


async def processes_for_two_sessions(url: str, server: Json, starts: Path) -> int:
    async with http_client(url, server) as one, http_client(url, server) as other:
        for client in (one, other):
            answer = await client.call_tool("echo", {"text": "here"})
            assert answer.content[0].text == "here"
    return len(starts.read_text().splitlines())


def test_what_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    here, absent = Variant("floor", "by hand"), Variant("langchain", "theirs", environment=ABSENT)
    notes: list[str] = []
    with ExitStack() as stack:
        assert set(start(lean_echo(), (absent, here), stack, notes)) == {here}
    assert notes == ["Left out of the lean table: theirs (a-package-that-is-nowhere is not installed: make it)."]
    assert version_notes([absent, here]) == []


def test_an_environment_counts_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_TEST_CACHE", str(tmp_path))
    assert LANGCHAIN.python() is None
    bin_folder = LANGCHAIN._folder() / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    assert LANGCHAIN.python() is None
    (bin_folder.parent / ".complete").touch()
    assert LANGCHAIN.python() == str(bin_folder / "python")


def test_a_package_of_this_interpreter_needs_no_environment() -> None:
    assert Baseline("pytest", "pip install pytest").python() == sys.executable
    assert Baseline("nowhere_at_all", "pip install it").python() is None
