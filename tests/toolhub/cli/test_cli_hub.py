"""The commands against a hub that runs: over its socket, and over TCP with a token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_hub import ServedHub, open_task, served, stub, text_of, write_config
from toolhub_command import Shell, refused

from toolhub.private_files import read_secret

TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    folder = tmp_path_factory.mktemp("hub")
    config = write_config(folder, servers={"echo": stub(), "a-server-with-a-rather-long-name": stub()})
    options = ("--uds", str(folder / "hub.sock"), "--token", TOKEN)
    with served(config, *options, token=TOKEN) as running:
        yield running


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with the hub's token that only its owner may read."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


def test_a_token_on_the_command_line_works_and_is_warned_of_once(shell: Shell, hub: ServedHub) -> None:
    done = shell("tasks", "--json", "--hub", hub.http, "--token", TOKEN)
    assert done.returncode == 0 and done.stderr.count("list of processes (ps)") == 1
    assert TOKEN not in done.stderr and "--token-file PATH or the environment variable TOOLHUB_TOKEN" in done.stderr
    assert "list of processes" in hub.said  # the hub of these tests was started so as well


def test_a_token_from_the_environment_is_not_warned_of_and_a_file_goes_before_it(
    shell: Shell, hub: ServedHub, token_file: Path
) -> None:
    assert shell("tasks", "--hub", hub.http, env={"TOOLHUB_TOKEN": TOKEN}).stderr == ""
    done = shell("tasks", "--hub", hub.http, "--token-file", str(token_file), env={"TOOLHUB_TOKEN": "another"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["serve", "tools", "tasks", "stdio"])
def test_a_command_refuses_a_token_file_that_others_can_read(shell: Shell, token_file: Path, command: str) -> None:
    token_file.chmod(0o640)
    message = shell.refusal(command, "--token-file", str(token_file))
    assert "has mode 0640, so other users can read or change it" in message and "chmod 600" in message
    assert TOKEN not in message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_token_file_that_others_can_read_or_change_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    with pytest.raises(PermissionError, match=f"has mode {mode:04o}"):
        read_secret(token_file, limit=100)


def test_a_token_file_of_another_user_is_refused(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        read_secret(token_file, limit=100)


@pytest.mark.parametrize("content", ["", "two words", "x" * 5000, "\xff"], ids=["empty", "words", "long", "binary"])
def test_a_file_without_one_token_is_refused(shell: Shell, token_file: Path, content: str) -> None:
    token_file.write_text(content)
    assert shell.refusal("tasks", "--token-file", str(token_file)).startswith("toolhub: --token-file: ")


def test_a_token_file_that_cannot_be_read_is_told_with_its_name_and_the_reason(shell: Shell, tmp_path: Path) -> None:
    missing = shell.refusal("tasks", "--token-file", str(tmp_path / "nothing"))
    assert missing == f"toolhub: --token-file: cannot read {tmp_path / 'nothing'}: No such file or directory"
    folder = shell.refusal("tasks", "--token-file", str(tmp_path))
    assert folder == f"toolhub: --token-file: {tmp_path} is not a regular file of at most 4096 bytes"


def test_a_token_and_a_token_file_at_once_are_refused(shell: Shell, token_file: Path) -> None:
    done = shell("tasks", "--token", TOKEN, "--token-file", str(token_file))
    assert done.returncode == 2 and "--token and --token-file were both given" in done.stderr


@pytest.fixture(params=["unix", "tcp", "environment"])
def address(request: pytest.FixtureRequest, hub: ServedHub, token_file: Path) -> tuple[list[str], dict[str, str]]:
    """The options and the environment that lead a command to the hub."""
    if request.param == "unix":
        return ["--hub", f"unix://{hub.uds}"], {}
    if request.param == "tcp":
        return ["--hub", hub.http, "--token-file", str(token_file)], {}
    return [], {"TOOLHUB_URL": hub.http, "TOOLHUB_TOKEN": TOKEN}


def test_a_call_goes_to_the_running_hub(shell: Shell, address: tuple[list[str], dict[str, str]]) -> None:
    options, env = address
    done = shell("call", "echo", "progress", '{"steps": 1}', *options, env=env)
    assert (done.stdout, done.stderr.strip(), done.returncode) == ("1 steps done\n", "1/1", 0)


def test_tools_of_a_running_hub_are_listed(shell: Shell, hub: ServedHub) -> None:
    assert list(shell.json("tools", "--hub", f"unix://{hub.uds}")) == ["echo", "a-server-with-a-rather-long-name"]


def test_a_call_leaves_no_task_behind(shell: Shell, hub: ServedHub) -> None:
    shell("call", "echo", "pid", "--hub", f"unix://{hub.uds}")
    with hub.client() as client:
        assert client.get("/v1/tasks").json() == {"tasks": []}


def test_a_call_in_a_task_that_is_open_is_made_there_and_leaves_it_open(shell: Shell, hub: ServedHub) -> None:
    with hub.client() as client, open_task(client, id="held") as task:
        pid = text_of(task.call("pid", "echo"))
        done = shell("call", "echo", "pid", "--task", "held", "--hub", f"unix://{hub.uds}")
        assert (done.stdout.strip(), done.stderr, done.returncode) == (pid, "", 0)
        assert text_of(task.call("pid", "echo")) == pid
    with hub.client() as client:
        assert client.get("/v1/tasks").json() == {"tasks": []}


def test_a_call_in_a_task_that_is_not_open_opens_it_and_ends_it(shell: Shell, hub: ServedHub) -> None:
    for _ in range(2):
        done = shell("call", "echo", "pid", "--task", "brief", "--hub", f"unix://{hub.uds}")
        assert done.returncode == 0 and done.stdout.strip().isdigit()
        with hub.client() as client:
            assert client.get("/v1/tasks").json() == {"tasks": []}


@pytest.mark.parametrize("where", ["running", "own"])
def test_a_task_id_that_could_leave_its_place_is_refused_with_the_rule(
    shell: Shell, hub: ServedHub, where: str
) -> None:
    config = write_config(shell.folder, name="own.yaml", servers={"echo": stub()})
    reach = ("--hub", f"unix://{hub.uds}") if where == "running" else ("--config", str(config))
    said = shell.refusal("call", "echo", "pid", "--task", "../../etc", *reach)
    assert "use 1 to 128 letters" in said and "'../../etc'" in said


def test_tasks_are_shown_whole_in_80_columns(shell: Shell, hub: ServedHub) -> None:
    name, run = "evaluation-run-2026-11-20-task-0001", "validation-2026-11-20"
    with hub.client() as client, open_task(client, id=name, run=run) as task:
        task.call("pid", "a-server-with-a-rather-long-name")
        done = shell("tasks", "--hub", f"unix://{hub.uds}")
    assert done.returncode == 0 and "…" not in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    columns = ["task", "run", "age", "lease", "left", "calls", "errors", "in", "flight"]
    columns += ["waiting", "servers"]
    assert next(line for line in lines if line.startswith("task ")).split() == columns
    assert name in "".join(line.split("  ")[0] for line in lines)  # the first column, which is folded


def test_tasks_as_json_are_the_hub_s_statistics(shell: Shell, hub: ServedHub) -> None:
    with hub.client() as client, open_task(client, id="t1", run="r1"):
        told = shell.json("tasks", "--hub", f"unix://{hub.uds}")
    assert told["pid"] == hub.process.pid
    assert [(task["id"], task["run"]) for task in told["tasks"]] == [("t1", "r1")]


def test_what_tasks_wait_for_is_shown_with_its_limit(shell: Shell, hub: ServedHub) -> None:
    lines = shell("tasks", "--hub", f"unix://{hub.uds}").stdout.splitlines()
    limiters = lines[next(number for number, line in enumerate(lines) if line.startswith("limit on")) :]
    assert limiters[0].split("  ")[0] == "limit on" and limiters[0].split()[-2:] == ["mean", "wait"]
    assert limiters[1].split() == ["the", "hub", "256", "0", "0", "0", "-"]
    assert any(line.startswith("the start of processes") for line in limiters)
    assert any(line.startswith("processes ") and "descriptors" in line for line in limiters)


def test_no_tasks_are_said_to_be_none(shell: Shell, hub: ServedHub) -> None:
    assert "no open tasks" in shell("tasks", "--hub", f"unix://{hub.uds}").stdout


def test_a_hub_that_does_not_run_is_one_clear_line(shell: Shell, tmp_path: Path) -> None:
    commands = (["tasks"], ["tools"], ["call", "echo", "pid"], ["stdio"])
    for said in map(refused, shell.together(*([*one, "--hub", f"unix://{tmp_path}/no.sock"] for one in commands))):
        assert "no hub answers at unix://" in said and "toolhub serve" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("options", [[], ["--token", "wrong"]], ids=["none", "wrong"])
def test_a_wrong_token_is_one_clear_line(shell: Shell, hub: ServedHub, options: list[str]) -> None:
    said = shell.refusal("tools", "--hub", hub.http, *options)
    assert "missing or wrong bearer token" in said and "TOOLHUB_TOKEN" in said and TOKEN not in said
