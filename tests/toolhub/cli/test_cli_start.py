"""What a new user meets first: the help, a missing config, a wrong one."""

from __future__ import annotations

import json

import pytest
from served_hub import stub
from toolhub_command import Shell, refused

COMMANDS = ("serve", "stdio", "tools", "servers", "call", "tasks", "doctor", "demo", "bench")
NEED_A_CONFIG = [["serve"], ["stdio"], ["tools"], ["call", "a", "b"], ["doctor"]]


@pytest.mark.quick
def test_the_help_names_every_command(shell: Shell) -> None:
    done = shell("--help")
    assert done.returncode == 0
    assert all(f"│ {command} " in done.stdout for command in COMMANDS)


def test_every_command_explains_itself(shell: Shell) -> None:
    for command, done in zip(COMMANDS, shell.together(*([name, "-h"] for name in COMMANDS)), strict=True):
        assert done.returncode == 0 and f"{command} [OPTIONS]" in done.stdout and done.stderr == ""


def test_without_a_config_the_message_says_how_to_make_one(shell: Shell) -> None:
    for said in map(refused, shell.together(*NEED_A_CONFIG)):
        assert "toolhub.yaml" in said and "--config" in said
        assert "servers:\n    time:\n      command: mcp-server-time" in said


@pytest.mark.parametrize("command", [["serve"], ["tools"]], ids=lambda command: command[0])
def test_a_wrong_config_is_told_with_file_and_line(shell: Shell, command: list[str]) -> None:
    (shell.folder / "bad.yaml").write_text("servers:\n  files:\n    command: x\n    shar: hub\n")
    said = shell.refusal(*command, "--config", "bad.yaml")
    assert said.startswith("toolhub: bad.yaml:4: servers.files.shar: unknown key 'shar'; did you mean 'share'?")
    assert len(said.splitlines()) == 1


def test_a_missing_variable_is_told_with_file_and_line(shell: Shell) -> None:
    (shell.folder / "toolhub.yaml").write_text('servers:\n  a:\n    command: "${NOT_THERE}"\n')
    said = shell.refusal("tools")
    assert said.startswith("toolhub: toolhub.yaml:3: servers.a.command: environment variable NOT_THERE is not set")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "text, told",
    [("servers: [", "toolhub.yaml"), ("", "no servers are configured"), ("{}", "no servers are configured")],
    ids=repr,
)
def test_a_config_that_says_nothing_is_told(shell: Shell, text: str, told: str) -> None:
    (shell.folder / "toolhub.yaml").write_text(text)
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
