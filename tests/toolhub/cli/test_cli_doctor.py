"""`toolhub doctor`: what works, how fast, and for what does not the cause and the fix. No secret in any output."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from served_hub import stub, write_config
from toolhub_command import Shell

from toolhub.cli.doctor import EXTRAS
from toolhub_runtime import DISTRIBUTION

SECRET = "hunter2-and-more"
ENVIRONMENT = {"MY_SECRET": SECRET}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder whose config has one server that works and some that do not; all know a secret."""

    def secretive(script: str) -> dict[str, object]:
        entry = stub(script, env={"API_KEY": "${MY_SECRET}"})
        return entry | {"args": [*entry["args"], "--key", "${MY_SECRET}"]}

    servers = {
        "works": secretive("echo"),
        "not-installed": {"command": "no-such-program", "args": ["${MY_SECRET}"]},
        "exits": secretive("exits_at_once"),
        "silent": secretive("never_answers") | {"start_timeout_s": 1},
        "remote": {"url": "http://127.0.0.1:9/mcp?key=${MY_SECRET}", "headers": {"X-Key": "${MY_SECRET}"}},
        "no-folder": stub(cwd="/no/such/folder"),
        "no-module": {"command": sys.executable, "args": ["-m", "no_such_module"]},
    }
    shell = Shell(tmp_path_factory.mktemp("mixed"))
    write_config(shell.folder, name="hub.yaml", servers=servers)
    return shell


@pytest.fixture(scope="module")
def reports(mixed: Shell) -> tuple[Any, str]:
    """What doctor says of that config to programs and to people."""
    as_json, table = mixed.together(["doctor", "--json"], ["doctor"], env=ENVIRONMENT)
    assert as_json.returncode == table.returncode == 1 and as_json.stderr == table.stderr == ""
    return json.loads(as_json.stdout), table.stdout


def test_a_healthy_config_is_exit_code_0_and_one_row_each(echo: Shell) -> None:
    done = echo("doctor")
    assert done.returncode == 0 and done.stdout.endswith("1 of 1 servers work\n")
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("echo "))
    assert row[:2] == ["echo", "ok"] and row[3] == "ms" and row[4:6] == ["2025-11-25", "(handshake)"]
    assert row[6] == "13" and int(row[7]) > 0 and row[8:] == ["MB", "stdio", "task"]


def test_every_failure_has_its_cause_and_its_fix(reports: tuple[Any, str]) -> None:
    servers = {one["server"]: one for one in reports[0]["servers"]}
    works = servers.pop("works")
    assert works["ok"] and works["era"] == "handshake" and works["tools"] == 13
    assert works["start_seconds"] > 0 and works["rss_bytes"] > 2**20 and works["error"] is None
    assert not any(one["ok"] for one in servers.values())
    expected = {
        "not-installed": ("not found on PATH", "install 'no-such-program'"),
        "exits": ("no API key", "run it by hand"),
        "silent": ("did not answer the handshake within 1 s", "start_timeout_s"),
        "remote": ("cannot connect to http://127.0.0.1:9/mcp", "is the server running"),
        "no-folder": ("working directory '/no/such/folder'", "create the directory"),
        "no-module": ("No module named no_such_module", f"{sys.executable} does not have the module no_such_module"),
    }
    for server, (cause, fix) in expected.items():
        assert cause in servers[server]["error"] and fix in servers[server]["fix"], servers[server]


def test_the_table_shows_every_server_and_explains_the_failures(reports: tuple[Any, str]) -> None:
    table = reports[1]
    assert table.endswith("1 of 7 servers work\n") and table.count("  fix: ") == 6
    header = next(line.split() for line in table.splitlines() if line.startswith("server "))
    assert header == ["server", "status", "start", "protocol", "tools", "RSS", "via", "share"]
    assert "…" not in table


def test_the_machine_is_checked(reports: tuple[Any, str]) -> None:
    checks = {one["check"]: one["status"] for one in reports[0]["machine"]}
    assert checks["python"] == checks["state"] == "ok"
    named = {"python", "supervision", "state", "uvloop", "open files", "node", "extras", "sandbox"}
    assert set(checks) == {*named, ""}  # what more there is to say about the sandbox


def test_each_extra_is_recognised_by_a_module_of_its_own() -> None:
    distributions = importlib.metadata.packages_distributions()
    wanted = importlib.metadata.requires(DISTRIBUTION) or []
    for extra, module in EXTRAS.items():
        named = {re.split(r"[^\w.-]", line)[0].lower() for line in wanted if f"extra == '{extra}'" in line}
        assert named & {name.lower().replace("_", "-") for name in distributions[module]}, (extra, module)


def test_the_module_of_an_extra_does_not_come_with_another_extra() -> None:
    distributions = importlib.metadata.packages_distributions()
    brought = {extra: _brought_by(Requirement(f"{DISTRIBUTION}[{extra}]")) for extra in EXTRAS}
    for extra, module in EXTRAS.items():
        own = {canonicalize_name(name) for name in distributions[module]}
        assert [other for other in EXTRAS if other != extra and own & brought[other]] == [], (extra, module)


def _brought_by(wanted: Requirement) -> set[str]:
    """The names of all distributions that an installer adds for a requirement."""
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(wanted.name), extra) for extra in ("", *wanted.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # not needed on this platform
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in seen}


def test_the_report_has_no_secret_from_the_environment(reports: tuple[Any, str]) -> None:
    assert SECRET not in json.dumps(reports[0]) + reports[1]


def test_a_secret_from_the_environment_is_in_no_output(mixed: Shell) -> None:
    commands = [["tools"], ["call", "works", "die"], ["call", "exits", "x", "--json"], ["call", "silent", "x"]]
    for done in mixed.together(*commands, env=ENVIRONMENT):
        assert SECRET not in done.stdout + done.stderr and done.returncode in (1, 2)


def builtin(name: str, **options: Any) -> dict[str, Any]:
    return {"builtin": name, "options": options}


@pytest.fixture(scope="module")
def builtins(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """What doctor says of builtins, each with another thing that is wrong, to programs and to people; where it ran."""
    folder = tmp_path_factory.mktemp("builtins")
    web = "search_and_scrape_webpage"
    servers = {
        "no-key": builtin("reasoning"),
        "two-keys": builtin("jina_scrape_llm_summary", readers=["direct"]),
        "one-tool": builtin(web, backends=[]),
        "denied": builtin(web, backends=[]) | {"tools": {"deny": ["sogou_search"]}},
        "search": builtin("google_search"),
        "misspelt": builtin("clock", zone="UTC"),
        "no-folder": builtin("google_search", backends=["local"], local={"folder": "docs"}),
        "no-factory": builtin("toolhub_servers.clock:creates"),
        "no-module": builtin("toolhub_servers.clocks:create_server"),
    }
    shell = Shell(folder)
    write_config(folder, name="hub.yaml", servers=servers)
    as_json, table = shell.together(["doctor", "--json"], ["doctor"])
    assert as_json.returncode == table.returncode == 1 and as_json.stderr == table.stderr == ""
    return {one["server"]: one for one in json.loads(as_json.stdout)["servers"]}, table.stdout, folder


def test_a_builtin_that_cannot_work_without_a_key_has_failed_though_it_started(
    builtins: tuple[dict[str, Any], str, Path],
) -> None:
    servers, table, _ = builtins
    assert not servers["no-key"]["ok"] and servers["no-key"]["tools"] == 1
    assert servers["no-key"]["error"].startswith("api_key is not set: ")
    assert "${ANTHROPIC_API_KEY}" in servers["no-key"]["fix"] and "set ANTHROPIC_API_KEY" in table
    assert servers["two-keys"]["error"].startswith("summary_llm_base_url and summary_llm_model_name are not set: ")


def test_a_builtin_that_works_without_a_key_has_a_note_unless_the_tool_is_denied(
    builtins: tuple[dict[str, Any], str, Path],
) -> None:
    servers, table, _ = builtins
    (note,) = servers["one-tool"]["notes"]
    assert servers["one-tool"]["ok"] and servers["one-tool"]["error"] is None
    assert note.startswith("sogou.secret_id and sogou.secret_key are not set: every call of sogou_search fails")
    assert "TENCENTCLOUD_SECRET_ID" in note and f"one-tool: {note}" in table
    assert servers["denied"]["ok"] and servers["denied"]["notes"] == []


def test_each_failure_of_a_builtin_has_a_fix_of_its_own(builtins: tuple[dict[str, Any], str, Path]) -> None:
    servers, _, folder = builtins
    expected = {
        "search": ("serper.api_key", "set SERPER_API_KEY"),
        "misspelt": ("'zone'", "remove that option or correct its name; `toolhub servers` has every option"),
        "no-folder": (str(folder / "docs"), "TOOLHUB_DOCS"),
        "no-factory": ("'creates'", "toolhub_servers.clock has no creates"),
        "no-module": ("toolhub_servers.clocks", "correct `builtin`"),
    }
    for server, (cause, fix) in expected.items():
        assert cause in servers[server]["error"] and fix in servers[server]["fix"], servers[server]
