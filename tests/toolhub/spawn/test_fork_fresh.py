"""A forked server sees, from inside, the process that an execution would have given it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from program_runs import HERE, Ended, both, run, spawners

from testbed import third_party
from toolhub.spawn.exec import Spawner

pytestmark = pytest.mark.anyio

PROBE = str(HERE / "fork_probe.py")


@pytest.fixture
async def spawner(tmp_path: Path) -> AsyncIterator[Spawner]:
    """Also asserts that nothing was executed that should have been forked."""
    async with spawners(tmp_path / "state") as (spawner, forks):
        yield spawner
        assert forks.reasons == {}


def differences(executed: Ended, forked: Ended) -> dict[str, Any]:
    """What the probe saw differently, as (executed, forked)."""
    told = [json.loads(ended.stdout.splitlines()[0]) for ended in (executed, forked)]
    return {name: (value, told[1][name]) for name, value in told[0].items() if value != told[1][name]}


FLAGS: dict[str, list[str]] = {
    "plain": [],
    "isolated": ["-I"],
    "no-site": ["-S", "-u"],
    "many": ["-BsO", "-W", "error::FutureWarning", "-X", "dev"],
    "utf8": ["-Xutf8=0", "-E", "-q"],
    "safe-path": ["-P"],
}


@pytest.mark.parametrize("flags", FLAGS)
async def test_a_script_sees_a_fresh_process(spawner: Spawner, flags: str) -> None:
    executed, forked = await both(spawner, sys.executable, *FLAGS[flags], PROBE, "", "a b", "ü\udcff")
    assert differences(executed, forked) == {}
    assert executed == forked


@pytest.mark.parametrize("flags", [[], ["-u"], ["-O"]])
async def test_a_module_sees_a_fresh_process(spawner: Spawner, flags: list[str]) -> None:
    executed, forked = await both(spawner, sys.executable, *flags, "-m", "fork_probe", "x", cwd=str(HERE))
    assert differences(executed, forked) == {}
    assert executed == forked


async def test_a_package_is_run_by_its_main(spawner: Spawner, tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(f"exec(open({PROBE!r}).read())")
    executed, forked = await both(spawner, sys.executable, "-m", "pack", cwd=str(tmp_path))
    assert differences(executed, forked) == {}
    assert "pack.__main__" in json.loads(forked.stdout)["main"]["__spec__"]


async def test_the_interpreter_of_another_environment_is_its_own(spawner: Spawner) -> None:
    executed, forked = await both(spawner, str(third_party.mcp1_python()), PROBE)
    assert differences(executed, forked) == {}
    assert json.loads(forked.stdout)["executable"][0] == str(third_party.mcp1_python())


async def test_a_console_script_runs_as_it_does_by_its_first_line(spawner: Spawner, tmp_path: Path) -> None:
    script = tmp_path / "my-server"
    script.write_text(f"#!{sys.executable} -B\n{Path(PROBE).read_text()}")
    script.chmod(0o755)
    executed, forked = await both(spawner, str(script), "x")
    assert differences(executed, forked) == {}
    assert json.loads(forked.stdout)["kernel"][0] == "Name:\tmy-server"


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "latin-1:replace", "PYTHONUNBUFFERED": "1"},
        {"PYTHONSAFEPATH": "1", "TZ": "Asia/Tokyo", "GRÜSSE": "✓ \n\udcff"},
    ],
    ids=["c-locale", "ascii", "stdio", "others"],
)
async def test_variables_of_the_interpreter_have_their_effect(spawner: Spawner, env: dict[str, str]) -> None:
    executed, forked = await both(spawner, sys.executable, PROBE, env=env)
    assert differences(executed, forked) == {}


@pytest.mark.parametrize(
    ("end", "code"),
    [("atexit", 0), ("text", 1), ("code", 7), ("raise", 1), ("chain", 1), ("interrupt", -2), ("unflushed", 0)],
)
async def test_a_program_ends_as_it_does_when_executed(spawner: Spawner, end: str, code: int) -> None:
    executed, forked = await both(spawner, sys.executable, PROBE, end)
    assert executed.code == code
    assert forked == executed  # with the text on stderr: no frame of ours is in a traceback


async def test_an_error_in_a_module_has_the_traceback_of_python_m(spawner: Spawner) -> None:
    executed, forked = await both(spawner, sys.executable, "-m", "fork_probe", "raise", cwd=str(HERE))
    assert "runpy" in executed.stderr and forked.stderr == executed.stderr


async def test_a_module_that_is_not_there_is_named_as_python_m_does(spawner: Spawner) -> None:
    executed, forked = await both(spawner, sys.executable, "-m", "no_such_module_anywhere")
    assert "No module named" in executed.stderr and forked == executed


async def test_a_script_that_does_not_parse_is_reported_as_python_does(spawner: Spawner, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("x = = 1\n")
    executed, forked = await both(spawner, sys.executable, str(script))
    assert "SyntaxError" in executed.stderr and forked == executed


async def test_stdin_is_read_as_usual(spawner: Spawner) -> None:
    executed, forked = await both(spawner, sys.executable, PROBE, "stdin", stdin="ü\r\n✓".encode())
    assert forked == executed and forked.stdout.endswith("'\\xfc\\r\\n\\u2713'\n")


async def test_two_forks_do_not_draw_the_same_random_numbers(spawner: Spawner) -> None:
    drawn = [(await run(spawner, sys.executable, PROBE, "random")).stdout.splitlines()[1] for _ in range(4)]
    numbers = [number for line in drawn[1:] for number in line.split(" ", 2)]  # the last three come from one zygote
    assert len(set(numbers)) == len(numbers) == 9
