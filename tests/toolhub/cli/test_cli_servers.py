"""`toolhub servers`: the builtin servers, by the short names that a config has them by."""

from __future__ import annotations

import json

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
