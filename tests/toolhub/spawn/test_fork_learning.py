"""What the first process imports is loaded when the next ones start; what forks must not share is not."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from program_runs import run, spawners

from toolhub import Config, ServerSpec
from toolhub.cli.doctor import check_forks
from toolhub.config.models import HubSettings
from toolhub.spawn.exec import Spawner
from toolhub.spawn.fork.server import FALLBACKS, MOST_TARGETS, ForkServer
from toolhub.spawn.fork.target import ForkTarget

pytestmark = pytest.mark.anyio


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def forks(state_dir: Path) -> AsyncIterator[tuple[Spawner, ForkServer]]:
    async with spawners(state_dir) as both:
        yield both


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder that counts as one of installed packages, once it is on PYTHONPATH."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    yield folder


def write(folder: Path, **modules: str) -> Path:
    """Write modules; each also notes in LOADED_BY the process that loads it."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(f"import os\nLOADED_BY = os.getpid()\n{text}\n")
    return folder


# Prints what it imported and whether somebody else had loaded it before.
SERVER = """
import json, os, sys
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError:
        pass
print(json.dumps({name: sys.modules[name].LOADED_BY != os.getpid() for name in sys.argv[1:] if name in sys.modules}))
"""


async def loaded_ahead(spawner: Spawner, folder: Path, *names: str, **fields: Any) -> dict[str, bool]:
    """Whether each module was there before the server's process was forked."""
    script = folder.parent / "server.py"
    script.write_text(SERVER)
    fields.setdefault("env", {})["PYTHONPATH"] = str(folder)
    ended = await run(spawner, sys.executable, "-B", str(script), *names, **fields)
    assert ended.code == 0, ended.stderr
    told: dict[str, bool] = json.loads(ended.stdout)
    return told


def the_target(forks: ForkServer) -> ForkTarget:
    (target,) = forks._targets.values()
    return target


async def test_what_the_first_process_imported_is_there_in_the_second(
    forks: tuple[Spawner, ForkServer], site: Path
) -> None:
    write(site, lib_a="", lib_b="import lib_c", lib_c="")
    assert await loaded_ahead(forks[0], site, "lib_a", "lib_b") == {"lib_a": False, "lib_b": False}
    assert await loaded_ahead(forks[0], site, "lib_a", "lib_c") == {"lib_a": True, "lib_c": True}
    assert forks[1].reasons == {} and the_target(forks[1]).excluded == {}


async def test_servers_that_give_one_program_other_arguments_have_a_profile_each(
    forks: tuple[Spawner, ForkServer], site: Path
) -> None:
    """As with `python -m toolhub_servers NAME`: what one imports, the others need not, and each has all of its own."""
    spawner, server = forks
    write(site, lib_a="", lib_b="")
    a, b = (ServerSpec(name=name, command="x") for name in ("a", "b"))
    for expected in (False, True):
        assert await loaded_ahead_as(spawner, site, a, "lib_a") == {"lib_a": expected}
        assert await loaded_ahead_as(spawner, site, b, "lib_b") == {"lib_b": expected}
    profiles = [set(target.modules or []) & {"lib_a", "lib_b"} for target in server._targets.values()]
    assert profiles == [{"lib_a"}, {"lib_b"}] and server.reasons == {}


async def test_many_servers_of_one_program_are_all_forked(forks: tuple[Spawner, ForkServer], site: Path) -> None:
    for number in range(MOST_TARGETS + 1):
        spec = ServerSpec(name=f"server-{number}", command="x")
        assert await loaded_ahead_as(forks[0], site, spec) == {}
    assert forks[1].reasons == {}


async def test_the_servers_own_modules_are_loaded_in_every_process(
    forks: tuple[Spawner, ForkServer], site: Path, tmp_path: Path
) -> None:
    """Their import-time reads of arguments, clock and environment happen per process."""
    write(tmp_path, beside_the_script="")
    for _ in range(3):
        assert await loaded_ahead(forks[0], site, "beside_the_script") == {"beside_the_script": False}


async def test_with_preload_the_modules_listed_there_are_loaded_and_no_others(
    forks: tuple[Spawner, ForkServer], site: Path, tmp_path: Path
) -> None:
    write(tmp_path, beside_the_script="")
    write(site, lib_a="")
    for _ in range(2):
        told = await loaded_ahead(forks[0], site, "beside_the_script", "lib_a", preload=["beside_the_script"])
        assert told == {"beside_the_script": True, "lib_a": False}


@pytest.mark.parametrize("module", ["no_such_module", "a_thread"])
async def test_a_configured_module_that_cannot_be_preloaded_is_named_in_the_reason(
    forks: tuple[Spawner, ForkServer], site: Path, module: str
) -> None:
    write(site, a_thread=CULPRITS["a-thread"])
    assert await loaded_ahead(forks[0], site, preload=[module]) == {}
    assert forks[1].reasons["program"].startswith(f"{module}: it ")
    assert "remove it from `preload`" in forks[1].reasons["program"]


CULPRITS = {
    "a-thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a-file": "file = open(__file__)",
    "a-print": "print('welcome')",
    "a-variable": "os.environ['SET_BY_IMPORT'] = '1'",
    "a-handler": "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)",
    "a-path": "import sys; sys.path.append('/x')",
    "a-directory": "os.chdir('/tmp')",
}


@pytest.mark.parametrize("culprit", CULPRITS)
async def test_a_module_that_does_something_to_its_process_is_left_out_with_its_importers(
    forks: tuple[Spawner, ForkServer], site: Path, culprit: str
) -> None:
    spawner, server = forks
    write(site, good="", importer="import culprit", culprit=CULPRITS[culprit], another="import importer")
    script = site.parent / "server.py"
    script.write_text("import good, importer, another, sys, os; print(good.LOADED_BY == os.getpid(), file=sys.stderr)")
    env = {"PYTHONPATH": str(site)}
    said = [(await run(spawner, sys.executable, "-B", str(script), env=env)).stderr.split()[-1] for _ in range(2)]
    assert said == ["True", "False"]
    assert set(the_target(server).excluded) == {"importer", "culprit", "another"}
    assert server.reasons == {}


async def test_many_modules_that_cannot_be_preloaded_are_found_together(
    forks: tuple[Spawner, ForkServer], site: Path
) -> None:
    culprits = {f"culprit_{number}": CULPRITS["a-file"] for number in range(12)}
    write(site, good="", **culprits)
    for is_ahead in (False, True):
        told = await loaded_ahead(forks[0], site, "good", *culprits)
        assert told.pop("good") is is_ahead and not any(told.values())
    assert set(the_target(forks[1]).excluded) == set(culprits)
    assert forks[1].reasons == {}


async def test_a_module_that_reads_a_tasks_variable_is_left_out(forks: tuple[Spawner, ForkServer], site: Path) -> None:
    write(site, good="", reader="KEY = os.environ.get('KEY')")
    spec = ServerSpec(name="x", command="x", env={"KEY": "${task.id}"})
    for task in ("a", "b", "c"):
        filled = spec.for_task({"id": task, "run": ""})
        told = await loaded_ahead_as(forks[0], site, filled, "good", "reader")
        assert told["reader"] is False
    assert told["good"] is True
    assert list(the_target(forks[1]).excluded) == ["reader"]


async def loaded_ahead_as(spawner: Spawner, folder: Path, spec: ServerSpec, *names: str) -> dict[str, bool]:
    """As `loaded_ahead`, for a spec that knows its task."""
    script = folder.parent / "server.py"
    script.write_text(SERVER)
    argv = [sys.executable, "-B", str(script), *names]
    filled = spec.model_copy(update={"spawn": "fork", "env": {**spec.env, "PYTHONPATH": str(folder)}})
    filled._task_variables, filled._has_cwd_per_task = spec.task_variables, spec.has_cwd_per_task
    ended = await run(spawner, *argv, spec=filled)
    told: dict[str, bool] = json.loads(ended.stdout)
    return told


async def test_a_server_whose_tasks_differ_in_what_an_interpreter_starts_with_is_executed(
    forks: tuple[Spawner, ForkServer], site: Path
) -> None:
    """A zygote for each task would be dearer than no zygote."""
    spawner, server = forks
    for number in range(MOST_TARGETS + 1):
        assert server.reasons == {}
        assert await loaded_ahead(spawner, site, env={"PYTHONHASHSEED": str(number)}) == {}
    assert "differ from start to start" in server.reasons["program"]


async def test_a_server_whose_tasks_have_each_a_directory_is_forked_from_one_zygote(
    forks: tuple[Spawner, ForkServer], site: Path, tmp_path: Path
) -> None:
    write(site, good="", bad="HERE = os.getcwd()")
    spec = ServerSpec(name="x", command="x", cwd=f"{tmp_path}/${{task.id}}")
    for task in ("a", "b", "c"):
        (tmp_path / task).mkdir()
        told = await loaded_ahead_as(forks[0], site, spec.for_task({"id": task, "run": ""}), "good", "bad")
    assert told == {"good": True, "bad": False}
    assert len(forks[1]._targets) == 1 and forks[1].reasons == {}


@pytest.mark.parametrize("deed", ["os._exit(3)", "raise SystemExit(4)", "os.kill(os.getpid(), 9)"])
async def test_a_module_that_ends_the_zygote_is_left_out(
    forks: tuple[Spawner, ForkServer], site: Path, deed: str
) -> None:
    """It does not end the server, which was told apart by a variable of its own."""
    code = f"import sys\nif 'server' not in sys.argv[0]: {deed}"
    write(site, good="", deadly=code)
    assert await loaded_ahead(forks[0], site, "good", "deadly") == {"good": False, "deadly": False}
    assert await loaded_ahead(forks[0], site, "good", "deadly") == {"good": True, "deadly": False}
    assert list(the_target(forks[1]).excluded) == ["deadly"] and forks[1].reasons == {}


async def test_a_fall_back_has_a_reason_that_doctor_shows(state_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = ServerSpec(name="program", command="/bin/echo", args=["hello"], spawn="fork")
    config = Config(servers={"program": spec}, hub=HubSettings(state_dir=state_dir))
    with caplog.at_level(logging.WARNING):
        async with spawners(state_dir) as (spawner, server):
            for _ in range(2):
                assert (await run(spawner, "/bin/echo", "hello")).stdout == "hello\n"
            assert server.reasons == {"program": "'/bin/echo' is not a Python interpreter"}
    assert len([record for record in caplog.records if "is executed instead of forked" in record.getMessage()]) == 1
    (finding,) = check_forks(config)
    assert (
        finding["detail"] == "server 'program' is executed instead of forked: '/bin/echo' is not a Python interpreter"
    )
    (state_dir / FALLBACKS).unlink()
    assert check_forks(config) == [{"check": "fork", "status": "ok", "detail": "program"}]
