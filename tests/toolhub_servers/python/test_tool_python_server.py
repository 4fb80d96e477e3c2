"""tool-python as a model sees it, on real sandboxes: texts, state, ownership, and that nothing runs twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from server_calls import answer, created, refusal
from toolhub_sandbox import OwnerSandboxes, Sandboxes
from toolhub_servers.python import server as python
from toolhub_servers.python.texts import INVALID_IDS

from toolhub.config import SandboxSettings
from toolhub.extensions import BuiltinContext

pytestmark = pytest.mark.anyio

# As the reference server publishes them, letter by letter.
SCHEMAS = {
    "create_sandbox": '{"properties": {"timeout": {"default": 600, "title": "Timeout", "type": "integer"}}, '
    '"type": "object"}',
    "run_command": '{"properties": {"command": {"title": "Command", "type": "string"}, '
    '"sandbox_id": {"title": "Sandbox Id", "type": "string"}}, '
    '"required": ["command", "sandbox_id"], "type": "object"}',
    "run_python_code": '{"properties": {"code_block": {"title": "Code Block", "type": "string"}, '
    '"sandbox_id": {"title": "Sandbox Id", "type": "string"}}, '
    '"required": ["code_block", "sandbox_id"], "type": "object"}',
    "upload_file_from_local_to_sandbox": '{"properties": {"sandbox_id": {"title": "Sandbox Id", "type": "string"}, '
    '"local_file_path": {"title": "Local File Path", "type": "string"}, '
    '"sandbox_file_path": {"default": "/home/user", "title": "Sandbox File Path", "type": "string"}}, '
    '"required": ["sandbox_id", "local_file_path"], "type": "object"}',
    "download_file_from_internet_to_sandbox": '{"properties": {"sandbox_id": {"title": "Sandbox Id", '
    '"type": "string"}, "url": {"title": "Url", "type": "string"}, '
    '"sandbox_file_path": {"default": "/home/user", "title": "Sandbox File Path", "type": "string"}}, '
    '"required": ["sandbox_id", "url"], "type": "object"}',
    "download_file_from_sandbox_to_local": '{"properties": {"sandbox_id": {"title": "Sandbox Id", "type": "string"}, '
    '"sandbox_file_path": {"title": "Sandbox File Path", "type": "string"}, '
    '"local_filename": {"default": null, "title": "Local Filename", "type": "string"}}, '
    '"required": ["sandbox_id", "sandbox_file_path"], "type": "object"}',
}
NEED_A_SANDBOX = {
    "run_command": {"command": "true"},
    "upload_file_from_local_to_sandbox": {"local_file_path": "/etc/passwd"},
    "download_file_from_internet_to_sandbox": {"url": "http://example.org/a"},
    "download_file_from_sandbox_to_local": {"sandbox_file_path": "/home/user/a"},
}


@asynccontextmanager
async def serving(scope: OwnerSandboxes | None, **options: Any) -> AsyncIterator[Client]:
    with anyio.fail_after(60):
        async with Client(python.create_server(context=BuiltinContext("task", scope), **options)) as client:
            yield client


@pytest.fixture
async def client(scope: OwnerSandboxes) -> AsyncIterator[Client]:
    async with serving(scope) as client:
        yield client


def printed(*lines: str) -> str:
    stdout = ["".join(f"{line}\n" for line in lines)] if lines else []
    return f"Execution(Results: [], Logs: Logs(stdout: {stdout}, stderr: []), Error: None)"


def not_found(sandbox_id: str) -> str:
    return (
        f"[ERROR]: Failed to connect to sandbox {sandbox_id}. "
        "Make sure the sandbox is created and the sandbox_id is correct."
    )


async def test_the_tools_have_the_schemas_that_the_models_know() -> None:
    listed = await python.create_server(context=BuiltinContext("task")).list_tools()
    assert {tool.name: json.dumps(tool.input_schema) for tool in listed} == SCHEMAS
    assert [tool.name for tool in listed] == list(SCHEMAS)


async def test_a_client_gets_the_schemas_with_the_parameters_in_order() -> None:
    async with serving(None) as client:
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert schemas == {name: json.loads(schema) for name, schema in SCHEMAS.items()}
    for name, schema in SCHEMAS.items():
        assert list(schemas[name]["properties"]) == list(json.loads(schema)["properties"])


async def test_every_description_explains_every_parameter() -> None:
    for tool in await python.create_server(context=BuiltinContext("task")).list_tools():
        assert tool.description and not tool.description.startswith((" ", "\n"))
        assert [name for name in tool.input_schema["properties"] if f"    {name}: " not in tool.description] == []


async def test_without_sandboxes_the_answer_names_what_is_missing() -> None:
    async with serving(None) as client:
        assert "context.sandboxes is None" in await refusal(client, "create_sandbox")


async def test_variables_and_files_stay_from_call_to_call(client: Client) -> None:
    sandbox_id = await created(client)
    assert await answer(client, "run_python_code", code_block="x = 6 * 7", sandbox_id=sandbox_id) == printed()
    await answer(client, "run_command", command="echo here > note", sandbox_id=sandbox_id)
    code = "print(x)\nprint(open('/home/user/note').read().strip())"
    assert await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id) == printed("42", "here")


async def test_the_value_of_the_last_line_is_a_result(client: Client) -> None:
    told = await answer(client, "run_python_code", code_block="6 * 7", sandbox_id=await created(client))
    assert told == "Execution(Results: [Result(42)], Logs: Logs(stdout: [], stderr: []), Error: None)"


async def test_an_exception_is_part_of_the_result_beside_the_output(client: Client) -> None:
    code = "print('before')\nraise ValueError('why')"
    told = await answer(client, "run_python_code", code_block=code, sandbox_id=await created(client))
    assert told.startswith(
        "Execution(Results: [], Logs: Logs(stdout: ['before\\n'], stderr: []), "
        "Error: ExecutionError(name='ValueError', value='why', traceback="
    )


async def test_a_command_that_succeeds_reads_as_the_sdk_prints_it(client: Client) -> None:
    told = await answer(client, "run_command", command="echo out; echo err >&2", sandbox_id=await created(client))
    assert told == "CommandResult(stderr='err\\n', stdout='out\\n', exit_code=0, error='')"


async def test_a_command_that_fails_keeps_its_output_and_runs_once(client: Client) -> None:
    sandbox_id = await created(client)
    told = await answer(client, "run_command", command="echo out | tee -a log; exit 3", sandbox_id=sandbox_id)
    assert told == "CommandResult(stderr='', stdout='out\\n', exit_code=3, error='exit status 3')"
    assert "stdout='out\\n'" in await answer(client, "run_command", command="cat log", sandbox_id=sandbox_id)


async def test_code_that_fails_runs_once(client: Client) -> None:
    sandbox_id = await created(client)
    code = "open('log', 'a').write('once')\n1 / 0"
    told = await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id)
    assert "ZeroDivisionError" in told
    assert "stdout='once'" in await answer(client, "run_command", command="cat ~/log", sandbox_id=sandbox_id)


async def test_code_that_is_too_slow_runs_once_and_keeps_its_state(scope: OwnerSandboxes) -> None:
    async with serving(scope, profile="hasty") as client:
        sandbox_id = await created(client)
        code = "x = 1\nopen('/home/user/log', 'a').write('once')\nwhile True: pass"
        told = await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id)
        assert "Error: ExecutionError(name='ExecutionTimeout'" in told
        assert told.splitlines()[-1].startswith("[INFO]: The code ran too long and was interrupted;")
        code = "print(x, open('/home/user/log').read())"
        assert await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id) == printed("1 once")


async def test_state_that_was_lost_is_told_and_files_are_still_there(scope: OwnerSandboxes) -> None:
    async with serving(scope, profile="hasty") as client:
        sandbox_id = await created(client)
        await answer(client, "run_command", command="echo kept > ~/note", sandbox_id=sandbox_id)
        code = (
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nx = 1\n"
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
        )
        told = await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id)
        assert told.splitlines()[-1].startswith(
            f"[WARNING]: The Python interpreter of sandbox {sandbox_id} had to be restarted: all variables"
        )
        code = "print('x' in globals(), open('/home/user/note').read().strip())"
        assert await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id) == printed("False kept")


async def test_a_command_that_is_too_slow_runs_once_and_keeps_its_output(scope: OwnerSandboxes) -> None:
    async with serving(scope, profile="hasty") as client:
        sandbox_id = await created(client)
        command = "echo once | tee -a ~/log; sleep 1000"
        told = await answer(client, "run_command", command=command, sandbox_id=sandbox_id)
        assert told.startswith("CommandResult(stderr='', stdout='once\\n', exit_code=")
        assert "error='timed out;" in told
        assert "stdout='once\\n'" in await answer(client, "run_command", command="cat ~/log", sandbox_id=sandbox_id)


async def test_a_command_that_no_shell_can_take_is_told(client: Client) -> None:
    told = await answer(client, "run_command", command="echo a\0b", sandbox_id=await created(client))
    assert told.startswith("[ERROR]: Failed to run command after 3 attempts.\n\nException type: ValueError\nDetails: ")


async def test_a_long_result_is_cut_at_20_000_characters(client: Client) -> None:
    sandbox_id = await created(client)
    told = await answer(client, "run_python_code", code_block="print('x' * 30_000)", sandbox_id=sandbox_id)
    assert len(told.removesuffix(" [Result truncated due to length limit]")) == 20_000
    told = await answer(client, "run_command", command="yes | head -c 30000", sandbox_id=sandbox_id)
    assert len(told.removesuffix(" [Result truncated due to length limit]")) == 20_000


@pytest.mark.parametrize("tool", NEED_A_SANDBOX)
async def test_an_invented_id_is_told_to_be_invalid(client: Client, tool: str) -> None:
    for sandbox_id in sorted(INVALID_IDS):
        assert await answer(client, tool, sandbox_id=sandbox_id, **NEED_A_SANDBOX[tool]) == (
            f"[ERROR]: '{sandbox_id}' is not a valid sandbox_id. "
            "Please create a real sandbox first using the create_sandbox tool."
        )


@pytest.mark.parametrize("tool", NEED_A_SANDBOX)
async def test_an_unknown_id_is_told_as_a_failed_connection(client: Client, tool: str) -> None:
    assert await answer(client, tool, sandbox_id="i1a2b3", **NEED_A_SANDBOX[tool]) == not_found("i1a2b3")


async def test_an_unknown_id_is_no_stateless_run(client: Client) -> None:
    told = await answer(client, "run_python_code", code_block="print(1)", sandbox_id="i1a2b3")
    assert told == not_found("i1a2b3")


async def test_code_for_an_invented_or_missing_id_runs_in_a_sandbox_that_is_gone_afterwards(client: Client) -> None:
    """A task may have three sandboxes here: many more runs than that end well only if each one's is gone."""
    for sandbox_id in (*sorted(INVALID_IDS), ""):
        told = await answer(client, "run_python_code", code_block="x = 1; print(x)", sandbox_id=sandbox_id)
        assert told == printed("1")
    assert await answer(client, "run_python_code", code_block="print(2)") == printed("2")
    told = await answer(client, "run_python_code", code_block="x", sandbox_id="default")
    assert "name 'x' is not defined" in told


async def test_a_limit_is_named_and_nothing_more_is_tried(client: Client) -> None:
    for _ in range(3):
        await created(client)
    told = await answer(client, "create_sandbox", timeout=60)
    assert told.startswith("[ERROR]: Failed to create sandbox after 5 attempts: ")
    assert told.endswith(", please retry later.")
    assert "max_per_task" in told
    told = await answer(client, "run_python_code", code_block="1", sandbox_id="none")
    assert told.startswith("[ERROR]: Failed to run code in stateless mode. Exception type: SandboxLimit, Details: ")


async def test_a_killed_sandbox_is_told_as_a_failed_connection(client: Client, scope: OwnerSandboxes) -> None:
    sandbox_id = await created(client)
    await scope.get(sandbox_id).kill()
    assert await answer(client, "run_command", command="true", sandbox_id=sandbox_id) == not_found(sandbox_id)


async def test_a_sandbox_lost_under_running_code_is_told_with_the_way_out(
    client: Client, scope: OwnerSandboxes
) -> None:
    sandbox_id = await created(client)
    told: list[str] = []

    async def run() -> None:
        code = "open('/home/user/started', 'w')\nimport time; time.sleep(1000)"
        told.append(await answer(client, "run_python_code", code_block=code, sandbox_id=sandbox_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        waiting = "until [ -e ~/started ]; do sleep 0.02; done"
        await answer(client, "run_command", command=waiting, sandbox_id=sandbox_id)
        await scope.get(sandbox_id).kill()
    assert told[0].startswith(not_found(sandbox_id) + "\nThe sandbox is gone")
    assert "create_sandbox" in told[0]


async def test_a_task_cannot_use_the_sandbox_of_another(client: Client, sandboxes: Sandboxes) -> None:
    sandbox_id = await created(client)
    other = sandboxes.for_owner("other")
    async with serving(other) as stranger:
        told = await answer(stranger, "run_command", command="true", sandbox_id=sandbox_id)
        assert told == not_found(sandbox_id)
    await other.aclose()
    assert "exit_code=0" in await answer(client, "run_command", command="true", sandbox_id=sandbox_id)


async def test_calls_do_not_wait_for_each_other(client: Client) -> None:
    """The first command ends only when later calls have done their work."""
    first, second = await created(client), await created(client)
    told: dict[str, str] = {}

    async def run(sandbox_id: str, command: str) -> None:
        told[sandbox_id] = await answer(client, "run_command", command=command, sandbox_id=sandbox_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, first, "until [ -e ~/go ]; do sleep 0.02; done; echo went")
        await run(second, "echo there")
        await answer(client, "run_python_code", code_block="open('/home/user/go', 'w').close()", sandbox_id=first)
    assert "stdout='went\\n'" in told[first]
    assert "stdout='there\\n'" in told[second]


def test_a_profile_that_does_not_exist_is_refused_at_once() -> None:
    settings = SandboxSettings.model_validate({"profiles": {"small": {}}})
    with pytest.raises(ValueError, match="profile 'gpu' is not known; there are bare, data, small"):
        python.create_server(profile="gpu", settings=settings)
