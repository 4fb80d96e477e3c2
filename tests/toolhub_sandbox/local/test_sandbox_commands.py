"""Shell commands: exit codes, streams, folders, and what they leave in the background."""

from __future__ import annotations

import anyio
import pytest
from running import Running
from toolhub_sandbox import CommandResult

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio


async def run(sandbox, command, **keys):
    with patience():
        return await sandbox.run_command(command, **keys)


async def test_a_command_that_works_has_exit_code_zero_and_both_streams(sandbox):
    assert await run(sandbox, "echo out; echo err >&2") == CommandResult("out\n", "err\n", 0)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("exec false", 1),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("sh -c 'kill -SEGV $$'", 139),
        ("if", 2),
        ("", 0),
    ],
)
async def test_exit_codes_are_those_that_a_shell_tells(sandbox, command, code):
    assert (await run(sandbox, command)).exit_code == code


async def test_a_command_starts_in_the_home_folder_with_a_clean_environment(sandbox):
    done = await run(
        sandbox,
        "pwd; echo $HOME $USER; id -un; hostname; "
        "env | grep -v -e MPLBACKEND -e ^PATH= | grep -ci -e toolhub -e token -e /root",
    )
    assert done.stdout == "/home/user\n/home/user user\nuser\nsandbox\n0\n"


async def test_a_command_has_its_folder_and_its_variables(sandbox):
    done = await run(sandbox, 'pwd; echo "$WORD"', cwd="/usr/lib", env={"WORD": "two words"})
    assert done.stdout == "/usr/lib\ntwo words\n"


async def test_a_relative_folder_starts_at_home(sandbox):
    assert (await run(sandbox, "mkdir -p a/b")).exit_code == 0
    assert (await run(sandbox, "pwd", cwd="a/b")).stdout == "/home/user/a/b\n"


@pytest.mark.parametrize("cwd", ["/no/such", "/etc/passwd", "a\0b", "\ud800"])
async def test_a_folder_that_is_none_is_told(sandbox, cwd):
    done = await run(sandbox, "true", cwd=cwd)
    assert (done.exit_code, done.stdout) == (126, "")
    assert "is not a directory in the sandbox" in done.stderr


@pytest.mark.parametrize("env", [{"A": "\ud800"}, {"A=B": "1"}, {"A": "a\0b"}, {"": "1"}, {"A": "x" * 300_000}])
async def test_variables_that_cannot_be_cost_only_the_command(sandbox, env):
    try:
        done = await run(sandbox, "echo ran", env=env)
    except ValueError:
        done = None
    assert done is None or done.stdout == "ran\n" or (done.exit_code == 126 and done.stderr)
    assert (await run(sandbox, "echo on")).stdout == "on\n"


async def test_a_command_cannot_hold_a_null_character(sandbox):
    with pytest.raises(ValueError, match="null character"):
        await run(sandbox, "echo a\0b")


async def test_any_text_is_given_to_the_shell_as_it_is(sandbox):
    done = await run(sandbox, "cat <<'END'\nit's \"quoted\" $HOME 你好 \\n\nEND")
    assert done.stdout == 'it\'s "quoted" $HOME 你好 \\n\n'


async def test_bytes_that_are_no_text_become_replacement_characters(sandbox):
    assert (await run(sandbox, r"printf 'a\xffb'; printf '\xc3' >&2")) == CommandResult("a\ufffdb", "\ufffd", 0)


async def test_a_command_finds_the_end_of_its_input(sandbox):
    assert (await run(sandbox, "cat; read line || echo none")).stdout == "none\n"


async def test_output_beyond_the_limit_is_counted(scope):
    with patience():
        sandbox = await scope.create("small")
    done = await run(sandbox, "head -c 1000 /dev/zero | tr '\\0' x; head -c 50000 /dev/zero >&2")
    assert (done.stdout, len(done.stderr), done.dropped_bytes) == ("x" * 100, 100, 900 + 49_900)


async def test_a_long_flood_does_not_block_the_command(sandbox):
    done = await run(sandbox, "head -c 100000000 /dev/zero")
    assert (len(done.stdout), done.dropped_bytes) == (1 << 20, 100_000_000 - (1 << 20))


async def test_a_command_that_takes_too_long_ends_with_all_that_it_started(sandbox):
    line = "sleep 1234 & setsid sleep 1234 & (setsid nohup sleep 1234 >/dev/null 2>&1 &); echo begun; sleep 1234"
    done = await run(sandbox, line, timeout=0.3)
    assert (done.stdout, done.exit_code, done.timed_out) == ("begun\n", 137, True)
    assert (await run(sandbox, "pgrep -fc 'sleep 123[4]'")).stdout == "0\n"


async def test_what_a_command_left_in_the_background_goes_on(sandbox):
    await run(sandbox, "(sleep 0.2; echo late > late) >/dev/null 2>&1 &")
    assert (await run(sandbox, "until [ -s late ]; do sleep 0.01; done; cat late")).stdout == "late\n"


async def test_a_background_process_that_holds_the_streams_does_not_delay_the_answer(sandbox):
    done = await run(sandbox, "sleep 1234 & echo answered", timeout=15)
    assert (done.stdout, done.timed_out) == ("answered\n", False)
    assert (await run(sandbox, "pgrep -fc 'sleep 123[4]'")).stdout == "1\n"


async def test_a_background_process_may_go_on_writing_to_its_streams(sandbox):
    await run(sandbox, "(until [ -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero && echo done > done) &")
    done = await run(sandbox, "touch go; until [ -s done ]; do sleep 0.01; done; cat done", timeout=5)
    assert done.stdout == "done\n", "as a server does that was started without redirecting what it logs"


async def test_commands_run_beside_code_and_beside_each_other(sandbox):
    async with anyio.create_task_group() as tasks:
        waiting = "import os, time\nwhile not os.path.exists('a'): time.sleep(0.01)\nopen('b', 'w').close()"
        code = Running(tasks, sandbox.exec_code, waiting)
        command = Running(tasks, sandbox.run_command, "until [ -e b ]; do sleep 0.01; done; echo both")
        await run(sandbox, "touch a")
        assert (await command.wait()).stdout == "both\n"
        assert (await code.wait()).error is None


async def test_the_33rd_command_at_once_is_refused_and_says_so(sandbox):
    async with anyio.create_task_group() as tasks:
        line = "until [ -e go ]; do sleep 0.05; done; echo went"
        running = [Running(tasks, sandbox.run_command, line) for _ in range(32)]
        await anyio.wait_all_tasks_blocked()
        refused = await run(sandbox, "true")
        assert (refused.exit_code, refused.stderr) == (126, "32 commands are running in this sandbox\n")
        with patience():
            await sandbox.put("go", b"")
        assert [(await one.wait()).stdout for one in running] == ["went\n"] * 32
    assert (await run(sandbox, "echo again")).stdout == "again\n"


async def test_many_commands_one_after_the_other_leave_nothing(sandbox):
    before = (await sandbox.info()).processes
    for number in range(30):
        assert (await run(sandbox, f"echo {number}")).stdout == f"{number}\n"
    assert (await sandbox.info()).processes == before
