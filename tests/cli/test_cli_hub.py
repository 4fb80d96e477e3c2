"""The commands against a hub that runs: over its socket, and over TCP with a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import Shell, refused
from serve.served import ServedHub, open_task, served, stub, text_of, write_config

TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    folder = tmp_path_factory.mktemp("hub")
    config = write_config(folder, servers={"echo": stub(), "a-server-with-a-rather-long-name": stub()})
    options = ("--uds", str(folder / "hub.sock"), "--token", TOKEN)
    with served(config, *options, token=TOKEN) as running:
        yield running


@pytest.fixture(params=["unix", "tcp", "environment"])
def address(request: pytest.FixtureRequest, hub: ServedHub) -> tuple[list[str], dict[str, str]]:
    """The options and the environment that lead a command to the hub."""
    if request.param == "unix":
        return ["--hub", f"unix://{hub.uds}"], {}
    if request.param == "tcp":
        return ["--hub", hub.http, "--token", TOKEN], {}
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
