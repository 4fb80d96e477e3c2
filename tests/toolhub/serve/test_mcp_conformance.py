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
from served_hub import Json, served, write_config

from testbed import third_party

pytestmark = pytest.mark.slow

REFERENCE = str(FIXTURES / "reference_server.py")
OLD, NEW = third_party.CONFORMANCE_VERSIONS
SUITES = {
    "0.1.16": (OLD, ()),
    "2025-11-25": (NEW, ("--suite", "all", "--spec-version", "2025-11-25")),
    "2026-07-28": (NEW, ("--suite", "all", "--spec-version", "2026-07-28")),
}
DIRECT = {"0.1.16": (40, 0), "2025-11-25": (84, 0), "2026-07-28": (152, 0)}
# Over stdio a server cannot close the stream of one answer, so this verdict does not exist.
OVER_STDIO = DIRECT | {"2025-11-25": (83, 0)}


@contextmanager
def reference_over_http() -> Iterator[str]:
    """Run the reference server; give its address."""
    command = [sys.executable, REFERENCE, "--transport", "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.terminate()


def verdicts(suite: str, url: str, folder: Path) -> tuple[tuple[int, int], str]:
    """Run a suite against a server; return (passed, failed), and what the suite printed."""
    version, options = SUITES[suite]
    command = [*third_party.conformance(version), "server", "--url", url, *options, "-o", str(folder / suite)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
    total = re.search(r"Total: (\d+) passed, (\d+) failed", done.stdout)
    assert total is not None, done.stdout + done.stderr
    return (int(total[1]), int(total[2])), done.stdout


def check(url: str, expected: dict[str, tuple[int, int]], folder: Path) -> None:
    for suite, counts in expected.items():
        found, printed = verdicts(suite, url, folder)
        assert found == counts, f"{suite}\n{printed}"


def check_behind_hub(server: Json, expected: dict[str, tuple[int, int]], folder: Path) -> None:
    with served(write_config(folder, servers={"reference": server})) as hub:
        check(f"{hub.http}/mcp", expected, folder)


def test_the_reference_server_itself_passes_every_check(tmp_path: Path) -> None:
    with reference_over_http() as url:
        check(url, DIRECT, tmp_path)


def test_behind_the_gateway_a_server_over_http_keeps_every_verdict(tmp_path: Path) -> None:
    with reference_over_http() as url:
        check_behind_hub({"url": url}, DIRECT, tmp_path)


def test_behind_the_gateway_a_server_over_stdio_keeps_every_verdict_that_stdio_has(tmp_path: Path) -> None:
    # Requests of revision 2026-07-28 belong to no session, and only what keeps no state serves them from one process.
    server = {"command": sys.executable, "args": [REFERENCE], "stateful": False}
    check_behind_hub(server, OVER_STDIO, tmp_path)
