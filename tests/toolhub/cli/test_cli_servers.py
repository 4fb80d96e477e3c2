"""`toolhub servers`: the builtin servers, by the short names that a config has them by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from served_hub import environment, served
from toolhub_command import Shell


def test_every_builtin_server_is_listed_with_its_tools_and_options(shell: Shell) -> None:
    done = shell("servers", "--json")
    servers = {one["name"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0 and len(servers) == 19
    assert servers["clock"] == {
        "name": "clock",
        "builtin": "toolhub_servers.clock:create_server",
        "description": "An MCP server that tells the time in any time zone.",
        "tools": ["get_current_time", "convert_time"],
        "options": {},
        "problem": None,
    }
    assert servers["google_search"]["tools"] == ["google_search", "scrape_website"]
    assert servers["google_search"]["options"]["serper.api_key"] is None
    assert all(one["tools"] for one in servers.values() if one["problem"] is None)


def test_the_list_for_people_names_each_server_and_how_a_config_has_it(shell: Shell) -> None:
    done = shell("servers")
    assert done.returncode == 0 and done.stderr == ""
    assert "task_planner" in done.stdout and "add_todo, list_todos" in done.stdout
    assert "clock: {builtin: clock}" in done.stdout


def test_defaults_are_shown_as_a_config_writes_them(shell: Shell) -> None:
    shown = shell("servers").stdout
    assert "sandbox=true" in shown and "backends=[serper]" in shown
    assert not re.search(r"=(True|False|None|\(\)|\[')", shown)


def test_a_short_name_that_no_package_has_is_told_with_the_command_that_lists_them(shell: Shell) -> None:
    config = {"servers": {"time": {"builtin": "klock"}}}
    (shell.folder / "hub.yaml").write_text(json.dumps(config))
    report = json.loads(shell("doctor", "--json").stdout)["servers"][0]
    assert "no installed package has a server called 'klock'" in report["error"]
    assert "`toolhub servers`" in report["error"] and "correct `builtin`" in report["fix"]


def test_a_builtin_may_be_named_by_module_and_factory_too(shell: Shell) -> None:
    config = {"servers": {"time": {"builtin": "toolhub_servers.clock:create_server"}}}
    (shell.folder / "hub.yaml").write_text(json.dumps(config))
    done = shell("call", "time", "get_current_time", "--json")
    assert done.returncode == 0 and "UTC" in done.stdout


CONFIG = """
servers:
  clock: {builtin: clock, tools: {deny: [convert_time]}}
  other: {command: my-program, args: [--key, "${MY_KEY:-}", a b], cwd: /my dir}
  remote: {url: "https://example.org/mcp?api_key=hunter2hunter2", share: hub}
"""


def test_the_servers_of_a_config_are_listed_without_a_start_and_without_secrets(shell: Shell) -> None:
    (shell.folder / "hub.yaml").write_text(CONFIG)
    clock, other, remote = json.loads(shell("servers", "-c", "hub.yaml", "--json").stdout)
    assert clock == {"name": "clock", "reach": "builtin clock", "share": "task", "tools": ["get_current_time"]}
    assert other["reach"] == "cd '/my dir' && my-program --key '***' 'a b'" and other["tools"] is None
    assert remote["reach"] == "https://example.org/mcp?api_key=***" and remote["share"] == "hub"
    assert "tools: not known before its first start" in shell("servers", "--config", "hub.yaml").stdout


def completed(shell: Shell, *words: str, **env: str) -> list[str]:
    """What a shell offers for the last word."""
    asked = {"_TOOLHUB_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    program = Path(sys.executable).parent / "toolhub"
    own = environment(asked | {"XDG_STATE_HOME": str(shell.folder / "state")} | env)
    done = subprocess.run([program], cwd=shell.folder, env=own, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_errors(shell: Shell) -> None:
    assert completed(shell, "toolhub", "errors", "Call") == ["CallError", "CallTimeout"]


def test_a_shell_completes_servers_and_their_tools(shell: Shell) -> None:
    assert completed(shell, "toolhub", "call", "c") == []  # no config yet
    (shell.folder / "hub.yaml").write_text(CONFIG.replace("${MY_KEY:-}", "${MY_KEY}"))
    assert completed(shell, "toolhub", "call", "") == ["clock", "other", "remote"]
    assert completed(shell, "toolhub", "tools", "-c", "hub.yaml", "re") == ["remote"]
    assert completed(shell, "toolhub", "call", "clock", "", MY_KEY="k") == ["get_current_time"]
    assert completed(shell, "toolhub", "call", "other", "", MY_KEY="k") == []
    assert completed(shell, "toolhub", "call", "--hub", f"unix://{shell.folder}/none.sock", "") == []


def test_completion_runs_no_function_that_a_config_names(shell: Shell) -> None:
    (shell.folder / "found.py").write_text("from pathlib import Path\nPath('executed').touch()\ncreate = None\n")
    (shell.folder / "hub.yaml").write_text("servers: {bad: {builtin: 'found:create'}}")
    assert completed(shell, "toolhub", "call", "bad", "", PYTHONPATH=str(shell.folder)) == []
    assert not (shell.folder / "executed").exists()


def test_a_shell_completes_the_tools_that_a_server_has_listed_and_the_servers_of_a_hub(echo: Shell) -> None:
    assert "echo" in echo("tools", "echo").stdout
    assert completed(echo, "toolhub", "call", "echo", "ec") == ["echo"]
    with served(echo.folder / "hub.yaml") as hub:
        assert completed(echo, "toolhub", "call", "--hub", hub.http, "") == ["echo"]
