"""Code in a sandbox: state, output, errors as the code made them."""

from __future__ import annotations

import re
from dataclasses import replace

import anyio
import pytest
from toolhub_sandbox import Execution, Failure, Sandbox

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio


async def run(sandbox: Sandbox, code: str, **keys: float) -> Execution:
    with patience():
        return await sandbox.exec_code(code, **keys)


async def test_what_code_defines_is_there_for_the_next(sandbox):
    await run(sandbox, "import math\nx = 20\ndef double(n): return 2 * n")
    done = await run(sandbox, "print(math.floor(2.5))\ndouble(x) + 2")
    assert (done.stdout, done.result, done.error, done.state) == ("2\n", "42", None, "kept")


async def test_executions_are_numbered_from_one(sandbox):
    assert [(await run(sandbox, "1")).number for _ in range(3)] == [1, 2, 3]


async def test_two_sandboxes_share_nothing(scope):
    with patience():
        one, two = await scope.create(), await scope.create()
    await run(one, "x = 1\nopen('mark', 'w').close()")
    assert (await run(two, "x")).error.name == "NameError"
    assert (await run(two, "import os; os.listdir('.')")).result == "[]"


async def test_the_streams_are_apart(sandbox):
    done = await run(sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


async def test_output_without_a_line_end_and_of_children_arrives(sandbox):
    done = await run(sandbox, "import os\nprint('a')\nos.system('printf b; echo c >&2')\nprint('d', end='')")
    assert (done.stdout, done.stderr) == ("a\nbd", "c\n")


async def test_any_text_arrives_as_it_was(sandbox):
    text = "zażółć 你好 🦊 \u2028 \x00 \r\n"
    done = await run(sandbox, f"print({text!r}, end='')\n{text!r}")
    assert (done.stdout, done.result) == (text, repr(text))


async def test_bytes_that_are_no_text_become_replacement_characters(sandbox):
    done = await run(sandbox, "import os\nn = os.write(1, b'a\\xff\\xfeb')\nn = os.write(2, b'\\xc3')")
    assert (done.stdout, done.stderr) == ("a\ufffd\ufffdb", "\ufffd")


async def test_lone_surrogates_in_code_are_replaced(sandbox):
    assert (await run(sandbox, "x = '\ud83d'\nx")).result == "'?'"


@pytest.mark.parametrize(
    "code",
    [
        "chr(0xD800)",
        "print(chr(0xD800))",
        "raise ValueError(chr(0xD800))",
        "class A:\n    def __repr__(self): return chr(0xD800)\nA()",
        "class A:\n    def _repr_html_(self): return chr(0xD800)\nA()",
        "type(chr(0xD800), (), {})()",
    ],
)
async def test_lone_surrogates_never_leave_the_sandbox(sandbox, code):
    done = await run(sandbox, code)
    texts = [done.stdout, done.stderr, *(text for shown in done.displays for text in shown.data.values())]
    if done.error is not None:
        texts += [done.error.name, done.error.value, done.error.traceback]
    assert "".join(texts).encode(), "text that cannot be encoded fails far from here, in somebody's JSON"


async def test_a_megabyte_of_code_runs(sandbox):
    done = await run(sandbox, f"text = '{'x' * (1 << 20)}'\nlen(text)")
    assert done.result == str(1 << 20)


async def test_code_that_is_too_long_is_refused_and_costs_nothing(sandbox):
    await run(sandbox, "x = 1")
    with pytest.raises(ValueError, match="bytes"):
        await run(sandbox, "#" * (65 << 20))
    assert (await run(sandbox, "x")).result == "1"


async def test_output_beyond_the_limit_is_counted(scope):
    with patience():
        sandbox = await scope.create("small")
    done = await run(sandbox, "import sys\nprint('x' * 999)\nprint('y' * 9, file=sys.stderr)")
    assert (done.stdout, done.stderr, done.dropped_bytes) == ("x" * 100, "y" * 9 + "\n", 900)
    assert (await run(sandbox, "print('z')")).stdout == "z\n"


async def test_a_flood_of_output_neither_blocks_nor_grows(sandbox):
    done = await run(sandbox, "for _ in range(64): print('x' * (1 << 20), end='')")
    assert (len(done.stdout), done.dropped_bytes) == (1 << 20, 63 << 20)


async def test_what_is_too_much_to_show_is_told(sandbox):
    done = await run(sandbox, "'x' * (9 << 20)")
    assert done.result == f"[not shown: {(9 << 20) + 2} bytes; one execution may show {8 << 20}]"


async def test_an_error_is_told_with_the_lines_of_the_code_and_none_of_ours(sandbox):
    await run(sandbox, "def half(n):\n    return n // 0  # a comment")
    done = await run(sandbox, "x = 1\nhalf(x)")
    unmarked = re.sub(r" +[~^]+\n", "", done.error.traceback)  # without the marks under what was evaluated
    assert replace(done.error, traceback=unmarked) == Failure(
        "ZeroDivisionError",
        "integer division or modulo by zero",
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n    half(x)\n'
        '  File "<cell 1>", line 2, in half\n    return n // 0  # a comment\n'
        "ZeroDivisionError: integer division or modulo by zero\n",
    )


async def test_output_before_an_error_is_kept_and_so_is_the_state(sandbox):
    done = await run(sandbox, "x = 5\nprint('before')\ndisplay('shown')\nraise KeyError('k')\nx = 6")
    assert (done.stdout, done.displays[0].text, done.state) == ("before\n", "'shown'", "kept")
    assert (done.error.name, done.error.value) == ("KeyError", "'k'")
    assert (await run(sandbox, "x")).result == "5"


async def test_causes_are_told_with_it(sandbox):
    done = await run(sandbox, "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('outer') from e")
    assert "ZeroDivisionError: division by zero" in done.error.traceback
    assert "direct cause" in done.error.traceback
    assert "inside/worker" not in done.error.traceback


async def test_a_syntax_error_shows_the_line(sandbox):
    done = await run(sandbox, "x = 1\nfor for")
    assert done.error.name == "SyntaxError"
    assert 'File "<cell 1>", line 2' in done.error.traceback
    assert "for for" in done.error.traceback
    assert "toolhub" not in done.error.traceback


async def test_nothing_runs_of_code_with_a_syntax_error(sandbox):
    assert (await run(sandbox, "print('a')\n)")).stdout == ""


@pytest.mark.parametrize(
    ("code", "value"), [("import sys; sys.exit(3)", "3"), ("raise SystemExit", ""), ("exit('bye')", "bye")]
)
async def test_leaving_is_an_error_like_others_and_keeps_the_state(sandbox, code, value):
    await run(sandbox, "x = 1")
    done = await run(sandbox, code)
    assert (done.error.name, done.error.value, done.state) == ("SystemExit", value, "kept")
    assert (await run(sandbox, "x")).result == "1"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ],
)
async def test_an_interpreter_that_dies_is_replaced_and_the_files_stay(sandbox, code, why):
    await run(sandbox, "x = 1\nopen('file', 'w').close()")
    done = await run(sandbox, f"print('last words', flush=True)\n{code}")
    assert (done.error.name, done.state, done.stdout) == ("WorkerDied", "lost", "last words\n")
    assert why in done.error.value
    after = await run(sandbox, "import os\n('x' in globals(), os.path.exists('file'))")
    assert (after.result, after.number) == ("(False, True)", 3)


async def test_input_finds_the_end(sandbox):
    assert (await run(sandbox, "input('name? ')")).error.name == "EOFError"
    assert (await run(sandbox, "import sys; sys.stdin.read()")).result == "''"


@pytest.mark.parametrize(
    "code", ["import sys; sys.stdout.close()", "import sys; sys.stdout = None", "import os; os.close(1)"]
)
async def test_code_that_closes_its_output_can_go_on(sandbox, code):
    await run(sandbox, code)
    assert (await run(sandbox, "1 + 1")).result == "2"


async def test_shell_lines_and_awaits_work(sandbox):
    done = await run(sandbox, "!echo hello\nimport asyncio\nawait asyncio.sleep(0, 'done')")
    assert (done.stdout, done.result, done.error) == ("hello\n", "'done'", None)


async def test_threads_and_children_of_python_work(sandbox):
    code = """
import concurrent.futures as cf, multiprocessing as mp, subprocess
with cf.ThreadPoolExecutor(4) as threads: a = list(threads.map(abs, [-1, -2]))
def square(n): return n * n
with mp.get_context("fork").Pool(2) as pool: b = pool.map(square, [2, 3])
c = subprocess.run(["cat"], input=b"through", capture_output=True).stdout
a, b, c"""
    assert (await run(sandbox, code)).result == "([1, 2], [4, 9], b'through')"


async def test_modules_in_the_home_folder_are_found(sandbox):
    with patience():
        await sandbox.put("mine.py", b"answer = 42")
    assert (await run(sandbox, "import mine; mine.answer")).result == "42"


async def test_overlapping_executions_run_in_order(sandbox):
    results = {}

    async def one(number):
        results[number] = await run(sandbox, f"seen.append({number}); len(seen)")

    await run(sandbox, "seen = []")
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(one, number)
            await anyio.wait_all_tasks_blocked()
    assert [results[number].result for number in range(10)] == [str(n) for n in range(1, 11)]
    assert (await run(sandbox, "seen == list(range(10))")).result == "True"
