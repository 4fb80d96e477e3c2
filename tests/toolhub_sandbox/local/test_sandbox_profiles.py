"""What profiles and settings change: variables, folders, interpreters, networks, and refusals that say the way out."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import venv
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from toolhub_sandbox import Sandboxes, SandboxUnavailable

from tests.toolhub_sandbox.local.sandbox_stage import (
    SYSTEM_PYTHON,
    is_system_python_new_enough,
    patience,
    processes,
    settings,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def one(profile=None, **keys):
    """A sandbox of settings of its own."""
    own = {"own": {"pool": 0} | profile} if profile is not None else {}
    async with Sandboxes(settings(profiles=own, **keys)) as sandboxes:
        with patience():
            sandbox = await sandboxes.for_owner("t").create("own" if own else None)
        yield sandbox


async def run(sandbox, code):
    with patience():
        return await sandbox.exec_code(code)


async def test_variables_of_the_profile_are_seen_by_code_and_commands():
    async with one({"env": {"WORD": "ż ' \"", "HOME": "/tmp"}}) as sandbox:
        assert (
            await run(sandbox, "import os; os.environ['WORD'], os.environ['HOME']")
        ).result == "('ż \\' \"', '/tmp')"
        with patience():
            assert (await sandbox.run_command("echo $WORD")).stdout == "ż ' \"\n"


async def test_variables_of_the_hub_are_not(monkeypatch):
    monkeypatch.setenv("HUB_SECRET", "secret")
    async with one() as sandbox:
        with patience():
            done = await sandbox.run_command("env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "secret" not in done.stdout


@pytest.fixture(params=["/var/tmp", "/tmp"])  # where sandboxes have nothing of their own, and where they do
def folder(request):
    with tempfile.TemporaryDirectory(dir=request.param, prefix="toolhub-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "corpus").mkdir()
        (folder / "corpus" / "a.txt").write_text("text")
        (folder / "beside.txt").write_text("not yours")
        yield folder


async def test_read_only_folders_are_seen_and_cannot_be_written(folder):
    async with one({"read_only": [str(folder / "corpus")]}) as sandbox:
        with patience():
            assert await sandbox.get(f"{folder}/corpus/a.txt") == b"text"
            for command in (
                f"echo x > {folder}/corpus/b",
                f"rm {folder}/corpus/a.txt",
                f"chmod 777 {folder}/corpus",
            ):
                assert (await sandbox.run_command(command)).exit_code != 0
            assert (await sandbox.run_command(f"ls {folder}")).stdout == "corpus\n"
    assert [file.name for file in (folder / "corpus").iterdir()] == ["a.txt"]


async def test_a_read_only_folder_that_is_missing_is_not_there_inside():
    async with one({"read_only": ["/no/such/folder"]}) as sandbox:
        with patience():
            assert (await sandbox.run_command("test -e /no/such/folder")).exit_code == 1


async def test_modules_loaded_beforehand_are_there_and_shared():
    async with one({"preload": ["decimal", "xml.dom.minidom"]}) as sandbox:
        assert (await run(sandbox, "import sys; 'xml.dom.minidom' in sys.modules")).result == "True"
        assert (
            await run(sandbox, "sorted(n for n in globals() if not n.startswith('_'))")
        ).result == "['display', 'sys']"


@pytest.mark.skipif(not is_system_python_new_enough(), reason=f"{SYSTEM_PYTHON} is not Python 3.11 or later")
async def test_another_interpreter_may_be_named():
    async with one(python=SYSTEM_PYTHON) as sandbox:
        found = await run(sandbox, "import sys; [sys.version_info[:2] >= (3, 11), sys.prefix]")
        assert found.result == "[True, '/usr']"
        with patience():
            assert (await sandbox.run_command("command -v python3")).stdout == "/usr/bin/python3\n"


async def test_an_environment_under_tmp_has_its_packages_although_sandboxes_have_a_tmp_of_their_own(tmp_path):
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = tmp_path.glob("env/lib/python*/site-packages")
    (packages / "early.py").write_text("x = 1")
    (packages / "late.py").write_text("x = 2")
    async with one({"preload": ["early"]}, python=str(tmp_path / "env" / "bin" / "python")) as sandbox:
        assert (await run(sandbox, "import early, late, os; early.x, late.x, os.listdir('/tmp')")).result == (
            f"(1, 2, ['{tmp_path.parts[2]}'])"
        )
        with patience():
            await sandbox.put("/tmp/mine", b"x")
            assert (await sandbox.run_command("python -c 'import late, sys; print(sys.prefix)'")).stdout == (
                f"{tmp_path}/env\n"
            )


async def test_the_hubs_own_interpreter_and_packages_are_the_default():
    async with one() as sandbox:
        assert (await run(sandbox, "import sys; sys.prefix")).result == repr(sys.prefix)
        assert (await run(sandbox, "import pydantic, psutil")).error is None


async def refusal(profile=None, **keys):
    before = processes()
    own = {"own": {"pool": 0} | profile} if profile is not None else {}
    async with Sandboxes(settings(profiles=own, **keys)) as sandboxes:
        scope = sandboxes.for_owner("t")
        with patience(), pytest.raises(SandboxUnavailable) as caught:
            await scope.create("own" if own else None)
        assert processes() <= before, "what failed to start has left processes"
        assert scope.count == 0
    return str(caught.value)


async def test_an_interpreter_that_is_missing_is_told():
    message = await refusal(python="/no/such/python")
    assert "sandbox.python: '/no/such/python' cannot be run: " in message
    assert "No such file" in message


async def test_an_interpreter_that_is_none_is_told():
    assert "sandbox.python: '/bin/false' cannot be run" in await refusal(python="/bin/false")


async def test_an_interpreter_that_is_too_old_is_told(tmp_path):
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\necho \'[[3, 9], "/usr", "/usr"]\'\n')
    old.chmod(0o755)
    assert f"sandbox.python: '{old}' is Python 3.9; 3.11 is needed" in await refusal(python=str(old))


async def test_a_module_that_cannot_be_loaded_is_told_with_the_interpreter():
    message = await refusal({"preload": ["no_such_module"]})
    assert f"module 'no_such_module' cannot be loaded by {sys.executable}: ModuleNotFoundError" in message


async def test_a_module_that_ends_the_interpreter_is_told(tmp_path):
    message = await refusal({"preload": ["antigravity_missing.sub"]})
    assert "antigravity_missing" in message


async def test_a_failed_profile_does_not_disturb_the_others():
    async with Sandboxes(settings(profiles={"broken": {"preload": ["no_such_module"]}})) as sandboxes:
        scope = sandboxes.for_owner("t")
        with patience():
            for _ in range(2):
                with pytest.raises(SandboxUnavailable, match="no_such_module"):
                    await scope.create("broken")
            assert (await (await scope.create()).exec_code("1")).result == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its sandboxes to another account")
async def test_an_account_that_is_missing_is_told():
    assert "sandbox.user: there is no account 'no-such-user'" in await refusal(user="no-such-user")


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 2).recv(5)"


async def test_without_a_network_there_is_only_a_loopback_of_its_own():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with one() as sandbox:
            code = CONNECT.format(port=listener.getsockname()[1])
            assert (await run(sandbox, code)).error.name == "ConnectionRefusedError"
            own = (
                "import socket as s\nhere = '127.0.0.1', 8000\nx = s.create_server(here)\ny = s.create_connection(here)"
            )
            assert (await run(sandbox, own)).error is None
            names = await run(sandbox, "[name for _, name in socket.if_nameindex()]")
            assert names.result == "['lo']"


async def test_two_sandboxes_do_not_share_a_loopback(scope):
    server = "import socket\nserver = socket.create_server(('127.0.0.1', 8000))"
    with patience():
        one, two = await scope.create(), await scope.create()
    assert (await run(one, server)).error is None
    assert (await run(two, server)).error is None


async def test_with_the_hosts_network_its_services_are_reached():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with one({"network": "host"}) as sandbox, anyio.create_task_group() as tasks:

            async def answer():
                connection, _ = await anyio.to_thread.run_sync(listener.accept)
                connection.sendall(b"hello")
                connection.close()

            tasks.start_soon(answer)
            done = await run(sandbox, CONNECT.format(port=listener.getsockname()[1]))
            assert done.result == "b'hello'"
            host_files = await run(sandbox, "open('/etc/resolv.conf').read()")
            assert host_files.result == repr(Path("/etc/resolv.conf").read_text())


async def test_what_is_enforced_is_told(sandboxes):
    with patience():
        isolation = await sandboxes.isolation()
    assert (isolation.backend, isolation.is_secure) == ("local", True)
    assert isolation.limits.startswith("cgroup v") == (not any("cgroup" in line for line in isolation.weaker))


async def test_two_hubs_run_beside_each_other_and_one_may_end():
    async with one() as staying:
        async with one() as leaving:
            assert (await run(leaving, "1")).result == "1"
        assert not leaving.is_alive
        assert (await run(staying, "2")).result == "2"
