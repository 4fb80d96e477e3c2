"""tool-python and stateless_python without a hub: in this process and as programs, leaving nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from in_process import run_server
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from server_calls import answer, created
from toolhub_servers.python import server as python
from toolhub_servers.python import stateless as stateless_python
from toolhub_servers.python.sandboxes import TaskSandboxes

from toolhub.config import SandboxSettings
from toolhub.extensions import BuiltinContext

ONE = SandboxSettings.model_validate({"max_sandboxes": 1, "profiles": {"bare": {"pool": 0}}})


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@asynccontextmanager
async def leaving_no_process() -> AsyncIterator[None]:
    before = children()
    with anyio.fail_after(60):
        yield
    left = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(children() - before, timeout=10)[1])
    assert left == []


@pytest.mark.anyio
@pytest.mark.parametrize("times", [1, 2])
async def test_a_server_alone_opens_sandboxes_and_ends_them_with_the_session(times: int) -> None:
    server = python.create_server()
    for _ in range(times):
        async with leaving_no_process(), Client(server) as client:
            sandbox_id = await created(client)
            await answer(client, "run_command", sandbox_id=sandbox_id, command="sleep 1000 & disown")
            told = await answer(client, "run_python_code", sandbox_id=sandbox_id, code_block="print(1)")
            assert told == "Execution(Results: [], Logs: Logs(stdout: ['1\\n'], stderr: []), Error: None)"


@pytest.mark.anyio
async def test_the_program_answers_over_stdio_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    (tmp_path / "hub.yaml").write_text("sandbox: {profiles: {tiny: {file_bytes: 100}}}\n")
    arguments = ["--config", "hub.yaml", "--profile", "tiny", "--local-dir", "."]
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolhub_servers", "python", *arguments],
        cwd=tmp_path,
        env={"LOGS_DIR": str(tmp_path / "logs")},
    )
    async with leaving_no_process(), Client(program) as client:
        sandbox_id = await created(client)
        await answer(client, "upload_file_from_local_to_sandbox", sandbox_id=sandbox_id, local_file_path="data.txt")
        code = "print(open('/home/user/data.txt').read())"
        told = await answer(client, "run_python_code", sandbox_id=sandbox_id, code_block=code)
        assert told == "Execution(Results: [], Logs: Logs(stdout: ['data\\n'], stderr: []), Error: None)"
        await answer(client, "run_command", sandbox_id=sandbox_id, command="setsid sleep 1000 & disown; echo ok > a")
        path = {"sandbox_file_path": "/home/user/a"}
        await answer(client, "download_file_from_sandbox_to_local", sandbox_id=sandbox_id, **path)
    assert (tmp_path / "logs" / "tmpfiles" / f"sandbox_{sandbox_id}_a").read_text() == "ok\n"


@pytest.mark.anyio
async def test_the_stateless_program_answers_over_stdio_and_leaves_no_process() -> None:
    program = StdioServerParameters(command=sys.executable, args=["-m", "toolhub_servers", "stateless_python"])
    async with leaving_no_process(), Client(program) as client:
        told = await answer(client, "python", code="print(6 * 7)")
        assert told == "Execution(Results: [], Logs: Logs(stdout: ['42\\n'], stderr: []), Error: None)"


@pytest.mark.anyio
async def test_stateless_code_keeps_nothing_and_its_sandbox_is_gone_whatever_happened() -> None:
    """There may be one sandbox at all: a second call ends well only if the first one's is gone."""
    with anyio.fail_after(60):
        async with Client(stateless_python.create_server(settings=ONE)) as client:
            assert "Error: None" in await answer(client, "python", code="x = 1")
            assert "name='ZeroDivisionError'" in await answer(client, "python", code="1 / 0")
            assert "name 'x' is not defined" in await answer(client, "python", code="x")
            told = await answer(client, "python", code="print('x' * 30_000)")
            assert len(told.removesuffix(" [Result truncated due to length limit]")) == 20_000


@pytest.mark.anyio
async def test_the_sandbox_of_a_cancelled_stateless_run_is_gone() -> None:
    lender = TaskSandboxes(None, None, ONE)
    with anyio.fail_after(60):
        async with lender.lifespan(None):
            with anyio.move_on_after(0.5) as limit:
                await lender.run_once("while True: pass")
            assert limit.cancelled_caught
            assert (await lender.run_once("1 + 1")).result == "2"


@pytest.mark.anyio
async def test_the_stateless_tool_has_the_schema_that_the_models_know() -> None:
    (tool,) = await stateless_python.create_server(context=BuiltinContext("task")).list_tools()
    assert tool.name == "python"
    assert json.dumps(tool.input_schema) == (
        '{"properties": {"code": {"title": "Code", "type": "string"}}, "required": ["code"], '
        '"title": "pythonArguments", "type": "object"}'
    )
    assert tool.description and "print" in tool.description and "    code: " in tool.description


@pytest.mark.parametrize("name", ["python", "stateless_python"])
def test_a_program_explains_itself_and_its_options(name: str) -> None:
    done = run_server(name, "--help")
    assert done.returncode == 0
    help_text = " ".join(done.stdout.split())
    assert f"python -m toolhub_servers {name}" in help_text and "MCP over stdio" in help_text
    assert "--config FILE" in help_text and "--profile NAME" in help_text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--local-dir", "/no/such/place"], "local_dirs: '/no/such/place' is not a directory"),
        (["--profile", "gpu"], "profile 'gpu' is not known; there are bare, data"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_an_unusable_option_ends_the_program_with_one_sentence(options: list[str], reason: str) -> None:
    done = run_server("python", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
