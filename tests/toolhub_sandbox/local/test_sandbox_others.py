"""The other backends of this machine: `subprocess`, which only limits, and `bwrap`. Both end in the same agent."""

from __future__ import annotations

import os
import shutil

import anyio
import pytest
from running import Running
from toolhub_sandbox import Sandboxes, SandboxLost, SandboxUnavailable
from toolhub_sandbox.local.uids import UNUSED_UID

from tests.toolhub_sandbox.local.sandbox_stage import (
    SYSTEM_PYTHON,
    is_system_python_new_enough,
    patience,
    processes,
    settings,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not is_system_python_new_enough(), reason=f"{SYSTEM_PYTHON} is not Python 3.11 or later"),
]

BACKENDS = ["subprocess", pytest.param("bwrap", marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap"))]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
async def sandboxes(anyio_backend, backend, temporary):
    before = processes()
    # Root gives its sandboxes to an account that may not reach the interpreter of these tests.
    async with Sandboxes(settings(backend=backend, python=SYSTEM_PYTHON)) as sandboxes:
        yield sandboxes
    assert (processes(), list(temporary.iterdir())) == (before, []), "something is left"


async def run(sandbox, code, **keys):
    with patience():
        return await sandbox.exec_code(code, **keys)


async def test_code_keeps_its_state_and_shows_its_result(sandbox):
    await run(sandbox, "x = 20")
    done = await run(sandbox, "print('hi')\n2 * x + 2")
    assert (done.stdout, done.result, done.error) == ("hi\n", "42", None)


async def test_code_that_takes_too_long_is_interrupted_and_keeps_its_state(sandbox):
    done = await run(sandbox, "x = 1\nimport time; time.sleep(100)", timeout=0.3)
    assert (done.timed_out, done.state) == (True, "kept")
    assert (await run(sandbox, "x")).result == "1"


async def test_an_interpreter_that_dies_is_replaced(sandbox):
    assert (await run(sandbox, "import os; os._exit(3)")).state == "lost"
    assert (await run(sandbox, "1 + 1")).result == "2"


async def test_commands_and_files_meet_under_home_user(sandbox):
    with patience():
        await sandbox.put("a/b.txt", b"hello")
        assert await sandbox.get("/home/user/a/b.txt") == b"hello"
        done = await sandbox.run_command("cat a/b.txt; exit 3")
        assert (done.stdout, done.exit_code) == ("hello", 3)
        assert (await sandbox.run_command("cat b.txt", cwd="/home/user/a")).stdout == "hello"
        assert (await sandbox.run_command('[ "$PWD" = "$HOME" ] && echo home')).stdout == "home\n"
    assert (await run(sandbox, "open('a/b.txt').read()")).result == "'hello'"


async def test_a_command_that_takes_too_long_ends_with_all_that_it_started(sandbox):
    await run(sandbox, "1")  # now its interpreter has started
    before = processes()
    with patience():
        done = await sandbox.run_command("setsid sleep 1234 & echo begun; sleep 1234", timeout=0.3)
    assert (done.stdout, done.timed_out, done.exit_code) == ("begun\n", True, 137)
    assert processes() == before


async def test_killing_ends_every_process_and_tells_whoever_waits(sandbox):
    await run(sandbox, "1")
    before = processes()
    with patience():
        await run(sandbox, "import subprocess; p = subprocess.Popen(['sleep', '1234'], start_new_session=True)")
        inside = processes() - before
        assert len(inside) == 1
        async with anyio.create_task_group() as tasks:
            running = Running(tasks, sandbox.exec_code, "while True: pass")
            await sandbox.info()
            await sandbox.kill()
            assert isinstance(await running.wait(), SandboxLost)
        while inside & processes():  # an orphan is found by the zygote
            await anyio.sleep(0.01)


async def test_info_is_plausible(sandbox, backend):
    with patience():
        info = await sandbox.info()
    assert (info.id, info.backend, info.executions) == (sandbox.id, backend, 0)
    assert info.processes >= 2
    assert info.rss_bytes > 1 << 20


async def test_what_is_enforced_is_told(sandboxes, backend):
    with patience():
        isolation = await sandboxes.isolation()
    assert (isolation.backend, isolation.is_secure) == (backend, backend == "bwrap")
    if backend == "subprocess":
        assert "no isolation: programs inside can do what the hub's user can" in isolation.weaker
        assert isolation.summary == "none: limits only"


async def test_two_sandboxes_have_homes_of_their_own(scope):
    with patience():
        one, two = await scope.create(), await scope.create()
        await one.put("file", b"x")
        assert (await two.run_command("ls -A")).stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its sandboxes to another account")
async def test_roots_sandboxes_are_not_root(sandbox, backend):
    wanted = {"subprocess": str(UNUSED_UID), "bwrap": "1000"}[backend]
    assert (await run(sandbox, "import os; os.getuid()")).result == wanted


async def test_the_folder_of_a_sandbox_is_private_and_goes_with_it(scope, backend, temporary):
    before = set(temporary.iterdir())
    with patience():
        sandbox = await scope.create()
        made = set(temporary.iterdir()) - before
        assert len(made) == (1 if backend == "subprocess" else 0)
        for folder in made:
            assert folder.stat().st_mode & 0o077 == 0
        await sandbox.put("a/b", b"x")
        await sandbox.kill()
    assert set(temporary.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root keeps the access it has")
async def test_an_interpreter_that_the_account_cannot_reach_is_told_with_the_way_out(tmp_path, backend):
    if backend != "subprocess":
        pytest.skip("only limits: no file tree of its own")
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(SYSTEM_PYTHON)
    tmp_path.chmod(0o700)
    async with Sandboxes(settings(backend="subprocess", python=str(python))) as sandboxes:
        with patience(), pytest.raises(SandboxUnavailable, match=r"name another interpreter in sandbox\.python"):
            await sandboxes.for_owner("t").create()


async def test_a_module_that_cannot_be_loaded_is_told(backend):
    own = settings(backend=backend, python=SYSTEM_PYTHON, profiles={"own": {"preload": ["no_such_module"], "pool": 0}})
    async with Sandboxes(own) as sandboxes:
        with patience(), pytest.raises(SandboxUnavailable, match="no_such_module"):
            await sandboxes.for_owner("t").create("own")


async def test_without_bubblewrap_the_way_out_is_told(monkeypatch, backend):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    async with Sandboxes(settings(backend="bwrap")) as sandboxes:
        with patience(), pytest.raises(SandboxUnavailable, match="install bubblewrap, or use the backend `local`"):
            await sandboxes.for_owner("t").create()
