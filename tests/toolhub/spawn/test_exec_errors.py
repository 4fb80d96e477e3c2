"""A command that cannot be executed: cause and way out, from the errno and from the real thing."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from toolhub.spawn.exec import Spawner, SpawnFailed, child_environment, explain_exec_error, open_spawner

pytestmark = pytest.mark.quick


def make_file(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("error", "command", "cwd", "told"),
    [
        ((errno.ENOENT, "No such file", "/x"), "py", "/x", ["working directory '/x': No such file", "create it"]),
        ((errno.ENOTDIR, "Not a directory", "/x"), "py", "/x", ["working directory '/x': Not a directory"]),
        ((errno.ENOENT, "", "py"), "py", None, ["'py' not found on PATH", "/bin", "install it"]),
        ((errno.ENOENT, "", "/no/py"), "/no/py", None, ["'/no/py' does not exist", "correct `command`"]),
        ((errno.ENOENT, "", "/bin/sh"), "/bin/sh", None, ["the first line of '/bin/sh' names an interpreter"]),
        ((errno.EACCES, "", "/opt/s"), "/opt/s", None, ["'/opt/s' is not executable", "chmod +x /opt/s"]),
        ((errno.ENOEXEC, "Exec format error", "s"), "s", None, ["'s' could not be executed: Exec format error"]),
    ],
)
def test_each_errno_is_explained(error: tuple[int, str, str], command: str, cwd: str | None, told: list[str]) -> None:
    explanation = explain_exec_error(error, command, {"PATH": "/bin"}, cwd)
    assert [part for part in told if part not in explanation] == []


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    async with open_spawner() as spawner:
        yield spawner


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda tmp: "no-such-program", "not found on PATH"),
        (lambda tmp: str(tmp / "gone"), "does not exist"),
        (lambda tmp: make_file(tmp / "plain", "#!/bin/sh\n", 0o644), "chmod"),
        (lambda tmp: make_file(tmp / "orphan", "#!/no/such/interpreter\n"), "names an interpreter"),
        (lambda tmp: make_file(tmp / "text", "no first line that says how"), "Exec format error"),
        (lambda tmp: str(tmp), "not executable"),
    ],
    ids=["unknown", "missing", "not-executable", "no-interpreter", "no-format", "directory"],
)
async def test_the_real_thing_is_explained(
    spawner: Spawner, tmp_path: Path, make: Callable[[Path], str], told: str
) -> None:
    with anyio.fail_after(30), pytest.raises(SpawnFailed, match=told):
        await spawner.spawn([make(tmp_path)], env=child_environment({}))


@pytest.mark.anyio
async def test_a_program_is_found_on_the_path_that_the_server_gets(spawner: Spawner, tmp_path: Path) -> None:
    make_file(tmp_path / "mine", "#!/bin/sh\nexit 7\n")
    with anyio.fail_after(30):
        child = await spawner.spawn(["mine"], env={"PATH": str(tmp_path)})
        await child.watch()
    assert child.exit_code == 7
    child.close()


@pytest.mark.anyio
async def test_an_argument_that_no_program_can_get_is_refused(spawner: Spawner) -> None:
    with anyio.fail_after(30), pytest.raises(SpawnFailed, match="null"):
        await spawner.spawn([sys.executable, "-c", "a\0b"], env={})


@pytest.mark.anyio
async def test_one_variable_over_the_systems_limit_is_refused(spawner: Spawner) -> None:
    with anyio.fail_after(30), pytest.raises(SpawnFailed, match="Argument list too long"):
        await spawner.spawn([sys.executable, "-c", ""], env={"HUGE": "x" * 3_000_000})


@pytest.mark.anyio
async def test_a_failed_exec_costs_nobody_else(spawner: Spawner) -> None:
    with anyio.fail_after(30):
        with pytest.raises(SpawnFailed):
            await spawner.spawn(["no-such-program"], env={})
        child = await spawner.spawn([sys.executable, "-S", "-c", "print(1)"], env={})
        await child.watch()
    assert child.exit_code == 0
    child.close()
