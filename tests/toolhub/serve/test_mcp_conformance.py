"""MCP's own conformance suites: behind the gateway the reference server gets every verdict that it gets directly."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_processes import FIXTURES
from served_hub import Json, served, stub, write_config

from testbed import third_party

pytestmark = pytest.mark.slow

REFERENCE = str(FIXTURES / "reference_server.py")
TASKS_SERVER = str(FIXTURES / "tasks_server.py")
OLD, NEW = third_party.CONFORMANCE_VERSIONS
SUITES = {
    "0.1.16": (OLD, ()),
    "2025-11-25": (NEW, ("--suite", "all", "--spec-version", "2025-11-25")),
    "2026-07-28": (NEW, ("--suite", "all", "--spec-version", "2026-07-28")),
}
# The scenarios of the tasks extension are in no suite.
TASKS = {
    "tasks-lifecycle": (9, 0),
    "tasks-capability-negotiation": (5, 0),
    "tasks-wire-fields": (4, 0),
    "tasks-request-state-removal": (3, 0),
    "tasks-mrtr-input": (4, 0),
    "tasks-request-headers": (5, 0),
    "tasks-dispatch-and-envelope": (9, 0),
    "tasks-required-task-error": (3, 0),
    "tasks-mrtr-composition": (2, 0),
}
SUITES |= {name: (NEW, ("--scenario", name)) for name in TASKS}
DIRECT = {"0.1.16": (40, 0), "2025-11-25": (84, 0), "2026-07-28": (152, 0)}
# Over stdio a server cannot close the stream of one answer, so this verdict does not exist.
OVER_STDIO = DIRECT | {"2025-11-25": (83, 0)}


@contextmanager
def over_http(script: str = REFERENCE) -> Iterator[str]:
    """Run a server; give its address."""
    command = [sys.executable, script, "--transport", "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.terminate()


def verdicts(suite: str, url: str, folder: Path) -> tuple[tuple[int, int], str]:
    """Run a suite or a scenario against a server; return (passed, failed), and what was printed."""
    version, options = SUITES[suite]
    command = [*third_party.conformance(version), "server", "--url", url, *options, "-o", str(folder / suite)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
    total = re.search(r"(?:Total: (\d+) passed|Passed: (\d+)/\d+), (\d+) failed", done.stdout)
    assert total is not None, done.stdout + done.stderr
    return (int(total[1] or total[2]), int(total[3])), done.stdout


def check(url: str, expected: dict[str, tuple[int, int]], folder: Path) -> None:
    for suite, counts in expected.items():
        found, printed = verdicts(suite, url, folder)
        assert found == counts, f"{suite}\n{printed}"


def check_behind_hub(expected: dict[str, tuple[int, int]], folder: Path, **servers: Json) -> None:
    with served(write_config(folder, servers=servers)) as hub:
        check(f"{hub.http}/mcp", expected, folder)


def test_the_reference_server_itself_passes_every_check(tmp_path: Path) -> None:
    with over_http() as url:
        check(url, DIRECT, tmp_path)


def test_behind_the_gateway_a_server_over_http_keeps_every_verdict(tmp_path: Path) -> None:
    with over_http() as url:
        check_behind_hub(DIRECT, tmp_path, reference={"url": url})


def test_behind_the_gateway_a_server_over_stdio_keeps_every_verdict_that_stdio_has(tmp_path: Path) -> None:
    # Requests of revision 2026-07-28 belong to no session, and only what keeps no state serves them from one process.
    server = {"command": sys.executable, "args": [REFERENCE], "stateful": False}
    check_behind_hub(OVER_STDIO, tmp_path, reference=server)


def test_the_server_with_tasks_itself_passes_every_check(tmp_path: Path) -> None:
    with over_http(TASKS_SERVER) as url:
        check(url, TASKS, tmp_path)


def test_tasks_of_a_server_over_http_are_polled_answered_and_cancelled(tmp_path: Path) -> None:
    with over_http(TASKS_SERVER) as url:
        check_behind_hub(TASKS, tmp_path, tasks={"url": url})


def test_tasks_of_a_server_over_stdio_are_polled_answered_and_cancelled(tmp_path: Path) -> None:
    check_behind_hub(TASKS, tmp_path, tasks={"command": sys.executable, "args": [TASKS_SERVER]})


def test_tasks_are_found_among_several_servers(tmp_path: Path) -> None:
    with over_http(TASKS_SERVER) as url:
        expected = {name: TASKS[name] for name in ("tasks-lifecycle", "tasks-mrtr-input", "tasks-mrtr-composition")}
        check_behind_hub(expected, tmp_path, tasks={"url": url}, other=stub())
