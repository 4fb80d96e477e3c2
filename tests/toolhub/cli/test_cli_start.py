"""What a new user meets first: the help, a missing config, a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_hub import stub
from toolhub_command import Shell, refused
from typer.main import get_command

import toolhub
import toolhub.cli.app as cli

cli.add_installed_commands()
GROUP: Any = get_command(cli.app)
COMMANDS = tuple(command.name for command in GROUP.commands.values())
NEED_A_CONFIG = [["serve"], ["stdio"], ["tools"], ["call", "a", "b"], ["doctor"]]
IN_A_PIPE = {"COLUMNS": ""}


def test_without_a_command_the_help_shows_all_of_them_in_groups_and_three_examples(shell: Shell) -> None:
    done = shell()
    assert done.returncode == 0 and done.stderr == ""
    sections = [line.removesuffix(":") for line in done.stdout.splitlines() if line and line[0] != " "]
    assert sections[1:] == ["Start here", "Run a hub", "Use its tools", "Run agents", "Measure", "Options", "Examples"]
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert len(done.stdout.partition("Examples:\n")[2].splitlines()) == 3


def test_every_command_explains_itself_and_shows_an_example(shell: Shell) -> None:
    for command, done in zip(COMMANDS, shell.together(*([name, "-h"] for name in COMMANDS)), strict=True):
        assert done.returncode == 0 and f"{command} [OPTIONS]" in done.stdout and done.stderr == ""
        assert f"  toolhub {command}" in done.stdout.partition("Examples:\n")[2]


def test_the_help_is_not_wrapped_in_a_pipe(shell: Shell) -> None:
    for done in shell.together(["-h"], ["call", "-h"], env=IN_A_PIPE):
        # A line that goes on in the next one is indented further than the text of the first column.
        assert not [line for line in done.stdout.splitlines() if line.startswith("     ")], done.stdout


def test_an_option_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for command in GROUP.commands.values():
        for option in command.params:
            if option.param_type_name == "option":
                meanings.setdefault(option.opts[0], set()).add(f"{option.metavar}: {option.help}")
    # `run` takes the tools from the hub and the agent from the config; elsewhere one of the two is given.
    assert {option for option, found in meanings.items() if len(found) > 1} == {"--hub"}


def test_the_version_is_printed_by_the_option_and_the_module(shell: Shell) -> None:
    done = shell("--version")
    assert done.returncode == 0 and done.stdout.startswith(f"toolhub {toolhub.__version__} (Python 3.")


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["stdio", "--hub", "http://127.0.0.1:1"]], ids=" ".join
)
def test_neither_the_sdk_nor_the_config_is_imported_where_they_are_not_needed(
    arguments: list[str], tmp_path: Path
) -> None:
    done = Shell(tmp_path, own_process=True)(*arguments, env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "toolhub.cli.app" in imported
    assert imported.isdisjoint({"mcp", "mcp_types", "toolhub.config", "yaml", "rich"})


def test_dir_shows_the_public_interface() -> None:
    assert dir(toolhub) == sorted(toolhub.__all__) and {"Hub", "connect", "load_config"} < set(dir(toolhub))


def test_a_config_on_the_command_line_is_used_instead_of_the_hub_of_the_environment(echo: Shell) -> None:
    assert list(echo.json("tools", "--config", "hub.yaml", env={"TOOLHUB_URL": "unix:///no/hub.sock"})) == ["echo"]
    said = echo.refusal("tools", "--hub", "unix:///no/hub.sock", "--config", "hub.yaml")
    assert "--hub and --config were both given" in said


def test_without_a_config_the_message_says_how_to_make_one(shell: Shell) -> None:
    for said in map(refused, shell.together(*NEED_A_CONFIG)):
        assert "hub.yaml" in said and "`toolhub init`" in said and "--config" in said and "--hub" in said


@pytest.mark.parametrize("command", [["serve"], ["tools"]], ids=lambda command: command[0])
def test_a_wrong_config_is_told_with_file_and_line(shell: Shell, command: list[str]) -> None:
    (shell.folder / "bad.yaml").write_text("servers:\n  files:\n    command: x\n    shar: hub\n")
    said = shell.refusal(*command, "--config", "bad.yaml")
    assert said.startswith("toolhub: bad.yaml:4: servers.files.shar: unknown key 'shar'; did you mean 'share'?")
    assert len(said.splitlines()) == 1


def test_a_missing_variable_is_told_with_file_and_line(shell: Shell) -> None:
    (shell.folder / "hub.yaml").write_text('servers:\n  a:\n    command: "${NOT_THERE}"\n')
    said = shell.refusal("tools")
    assert said.startswith("toolhub: hub.yaml:3: servers.a.command: environment variable NOT_THERE is not set")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "text, told",
    [("servers: [", "hub.yaml"), ("", "no servers are configured"), ("{}", "no servers are configured")],
    ids=repr,
)
def test_a_config_that_says_nothing_is_told(shell: Shell, text: str, told: str) -> None:
    (shell.folder / "hub.yaml").write_text(text)
    assert told in shell.refusal("tools")


def test_a_config_that_is_not_there_is_told(shell: Shell) -> None:
    assert "nowhere.yaml" in shell.refusal("tools", "--config", "nowhere.yaml")


def test_the_config_may_be_named_in_the_environment(shell: Shell) -> None:
    (shell.folder / "elsewhere.yaml").write_text("servers: 1")
    said = shell.refusal("tools", env={"TOOLHUB_CONFIG": "elsewhere.yaml"})
    assert said.startswith("toolhub: elsewhere.yaml:1: servers: ")


def test_a_desktop_client_s_file_is_found(shell: Shell) -> None:
    (shell.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"echo": stub()}}))
    assert list(shell.json("tools")) == ["echo"]


def test_an_unknown_log_level_is_told(echo: Shell) -> None:
    assert "is 'loud'; it must be debug" in echo.refusal("serve", "--log-level", "loud")
