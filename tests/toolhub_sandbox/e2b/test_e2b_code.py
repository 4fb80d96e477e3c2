"""Code: its state, what it shows, and how it is stopped."""

from __future__ import annotations

import base64

import anyio
import pytest
from toolhub_sandbox import SandboxUnavailable
from toolhub_sandbox.e2b import interpreter

from tests.toolhub_sandbox.e2b.standin_stage import patience, profile

pytestmark = pytest.mark.anyio

SLEEP = "import time\nprint('begun')\ntime.sleep(60)"
STUBBORN = """
import time
is_told = False
while True:
    try:
        if not is_told:
            is_told = True
            print('begun')  # here, so that no interrupt ends the code once the test knows that it runs
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def impatient(monkeypatch):
    """Interpreters that do not heed an interrupt are replaced soon."""
    monkeypatch.setattr(interpreter, "INTERRUPT_S", 0.5)


async def test_state_is_there_for_the_next_execution(sandbox):
    with patience():
        first = await sandbox.exec_code("import math\nradius = 2")
        second = await sandbox.exec_code("print('area')\nround(math.pi * radius**2)")
    assert (first.number, first.result, first.displays) == (1, None, ())
    assert (second.number, second.stdout, second.result, second.state) == (2, "area\n", "13", "kept")


async def test_rich_results_arrive_in_every_form(sandbox):
    png = base64.b64encode(b"\x89PNG").decode()
    code = f"""
class Chart:
    def __repr__(self): return 'a chart'
    def _repr_html_(self): return '<b>chart</b>'
    def _repr_png_(self): return {png!r}
display(Chart())
Chart()
"""
    with patience():
        done = await sandbox.exec_code(code)
    shown, result = done.displays
    assert (shown.is_result, result.is_result, done.result) == (False, True, "a chart")
    assert (result.text, result.html, result.png) == ("a chart", "<b>chart</b>", b"\x89PNG")
    assert done.images == (b"\x89PNG", b"\x89PNG")


async def test_the_failure_of_the_code_is_part_of_its_result(sandbox):
    with patience():
        done = await sandbox.exec_code("import sys\nprint('before', file=sys.stderr)\n1 / 0")
    assert (done.error.name, done.error.value, done.stderr) == ("ZeroDivisionError", "division by zero", "before\n")
    assert "ZeroDivisionError" in done.error.traceback
    assert (done.state, done.timed_out) == ("kept", False)


async def test_output_beyond_the_limit_is_counted_and_dropped(backend):
    with patience():
        sandbox = await backend.create("small", profile(output_bytes=10))
        done = await sandbox.exec_code("import sys\nprint('x' * 99)\nprint('y' * 4, file=sys.stderr)")
    assert (done.stdout, done.stderr, done.dropped_bytes) == ("x" * 10, "y" * 4 + "\n", 90)


async def test_a_timeout_interrupts_the_code_and_keeps_its_state(sandbox, service):
    with patience():
        await sandbox.exec_code("kept = 7")
        done = await sandbox.exec_code(SLEEP, timeout=0.3)
        after = await sandbox.exec_code("kept")
    assert (done.timed_out, done.error.name, done.state, done.stdout) == (True, "ExecutionTimeout", "kept", "begun\n")
    assert after.result == "7"
    assert service.executed.count(SLEEP) == 1
    assert not any(line.endswith("/restart") for line in service.requests)


async def test_code_that_swallows_interrupts_costs_the_state_and_says_so(sandbox, service, impatient):
    with patience():
        await sandbox.exec_code("gone = 7")
        done = await sandbox.exec_code(STUBBORN, timeout=0.3)
        after = await sandbox.exec_code("gone")
    assert (done.timed_out, done.error.name, done.state) == (True, "ExecutionTimeout", "lost")
    assert (after.error.name, after.state) == ("NameError", "kept")
    assert service.executed.count(STUBBORN) == 1


async def test_a_service_that_does_not_heed_disconnects_gets_a_new_interpreter(sandbox, service, impatient):
    for context in service.machines[sandbox.id].contexts.values():
        context.heeds_disconnects = False
    with patience():
        done = await sandbox.exec_code(SLEEP, timeout=0.3)
        after = await sandbox.exec_code("1 + 1")
    assert (done.state, after.result) == ("lost", "2")


async def test_an_interrupt_ends_the_running_code_and_keeps_its_state(sandbox, service):
    results = []

    async def run() -> None:
        results.append(await sandbox.exec_code(SLEEP))

    with patience():
        await sandbox.exec_code("kept = 7")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await service.until(lambda: "begun" in service.printed)
            await sandbox.interrupt()
        after = await sandbox.exec_code("kept")
    assert (results[0].error.name, results[0].state, results[0].timed_out) == ("Interrupted", "kept", False)
    assert after.result == "7"


async def test_an_interrupt_of_nothing_is_nothing(sandbox, service):
    with patience():
        before = len(service.requests)
        await sandbox.interrupt()
    assert len(service.requests) == before


async def test_a_cancelled_execution_leaves_a_working_interpreter(sandbox, service):
    with patience():
        await sandbox.exec_code("kept = 7")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.exec_code, SLEEP)
            await service.until(lambda: "begun" in service.printed)
            tasks.cancel_scope.cancel()
        after = await sandbox.exec_code("kept")
    assert (after.result, after.state) == ("7", "kept")
    assert service.executed.count(SLEEP) == 1


async def test_the_execution_after_a_cancelled_one_tells_that_the_state_was_lost(sandbox, service, impatient):
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.exec_code, STUBBORN)
            await service.until(lambda: "begun" in service.printed)
            tasks.cancel_scope.cancel()
        after = await sandbox.exec_code("1 + 1")
    assert (after.result, after.state) == ("2", "lost")


async def test_a_worker_that_dies_is_replaced_and_the_code_not_repeated(sandbox, service):
    code = "import os\nos._exit(1)"
    with patience():
        done = await sandbox.exec_code(code)
        after = await sandbox.exec_code("1 + 1")
    assert (done.error.name, done.state) == ("WorkerDied", "lost")
    assert (after.result, after.state) == ("2", "kept")
    assert service.executed.count(code) == 1


async def test_a_worker_that_died_between_two_executions_is_noticed_and_loads_its_modules_again(backend, service):
    with patience():
        sandbox = await backend.create("own", profile(preload=["colorsys"]))
        await sandbox.exec_code("gone = 7")
        for context in service.machines[sandbox.id].contexts.values():
            context.process.kill()
            context.process.wait()
        first = await sandbox.exec_code("new = 8\ngone")
        second = await sandbox.exec_code("import sys\nnew, 'colorsys' in sys.modules")
    assert (first.error.name, first.state) == ("NameError", "lost")
    assert (second.result, second.state) == ("(8, True)", "kept")


async def test_an_interpreter_that_cannot_be_restarted_is_replaced_by_a_new_one(sandbox, service, impatient):
    service.fail("POST /contexts/.*/restart", 500)
    with patience():
        done = await sandbox.exec_code(STUBBORN, timeout=0.3)
        after = await sandbox.exec_code("1 + 1")
    assert (done.state, after.result) == ("lost", "2")
    assert len(service.machines[sandbox.id].contexts) == 1  # the stubborn one was removed


async def test_code_waits_for_the_code_before_it_and_its_timeout_does_not_run_meanwhile(sandbox):
    results = {}

    async def run(name: str, code: str, timeout: float) -> None:
        results[name] = await sandbox.exec_code(code, timeout=timeout)

    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "first", "import time\ntime.sleep(2.2)\norder = ['first']", 10)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(run, "second", "order + ['second']", 2)
    assert (results["second"].result, results["second"].timed_out) == ("['first', 'second']", False)


async def test_a_profile_loads_its_modules_and_its_variables(backend):
    with patience():
        sandbox = await backend.create("own", profile(preload=["colorsys", "os.path"], env={"GREETING": "hello"}))
        done = await sandbox.exec_code("import os, sys\n'colorsys' in sys.modules, os.environ['GREETING']")
    assert done.result == "(True, 'hello')"


@pytest.mark.parametrize(("module", "problem"), [("no_such_module", "ModuleNotFoundError"), ("antigravity", "no way")])
async def test_a_module_that_the_template_cannot_load_is_named(backend, service, tmp_path, module, problem):
    broken = {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "antigravity.py").write_text("raise RuntimeError('no way')")
    with patience(), pytest.raises(SandboxUnavailable, match=f"{module}.*{problem}.*template"):
        await backend.create("bad", profile(preload=[module], env=broken))
    assert service.alive == []
