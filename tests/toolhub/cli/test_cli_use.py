"""`toolhub tools` and `toolhub call`: what they print and how they exit."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from real_processes import FIXTURES, PYTHON, below
from served_hub import TOOLHUB, environment, eventually, served, stub, write_config
from toolhub_command import Shell, refused

WIDE = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Server, text

server = Server("wide")
for name in ("a_name_of_the_length_that_generated_tools_often_have_these_days", "short"):
    server.tool(name, sandbox_id="string", local_file_path="string", second="string?")(lambda call: text(call.name))
server.run()
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Commands that use a hub that runs already: they print the same, a second sooner."""
    folder = tmp_path_factory.mktemp("quick")
    config = write_config(folder, servers={"echo": stub()})
    with served(config, "--uds", str(folder / "hub.sock")) as hub:
        yield Shell(folder, hub=f"unix://{hub.uds}")


def test_tools_are_listed_with_their_arguments(quick: Shell) -> None:
    done = quick("tools")
    assert done.returncode == 0 and done.stderr == ""
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[2:] if line.strip()}
    assert rows["echo"] == ["echo", "text", "Fixture", "tool", "echo"] and rows["die"][1] == "[code]"


def test_one_server_s_tools_are_listed(quick: Shell) -> None:
    assert "echo (13)" in quick("tools", "echo").stdout
    assert "did you mean 'echo'?" in quick.refusal("tools", "ecko")


def test_a_server_that_fails_costs_only_its_own_tools(shell: Shell) -> None:
    write_config(shell.folder, name="hub.yaml", servers={"bad": {"command": "no-such-program"}, "echo": stub()})
    done = shell("tools")
    assert done.returncode == 1
    assert "bad  failed" in done.stdout and "not found on PATH" in done.stdout and "echo (13)" in done.stdout
    told = shell.json("tools", code=1)
    assert told["bad"]["error"]["type"] == "StartError" and len(told["echo"]["tools"]) == 13


def test_long_names_are_whole_in_80_columns(shell: Shell) -> None:
    (shell.folder / "wide.py").write_text(WIDE)
    command, *options = PYTHON
    entry = {"command": command, "args": [*options, str(shell.folder / "wide.py"), str(FIXTURES)]}
    write_config(shell.folder, name="hub.yaml", servers={"wide": entry})
    lines = shell("tools").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and lines[1].split() == ["tool", "arguments", "description"]
    starts = [lines[1].index(column) for column in lines[1].split()]
    first, _, last = ("".join(line[a:b].strip() for line in lines[2:]) for a, b in pairwise([*starts, 80]))
    assert first == "a_name_of_the_length_that_generated_tools_often_have_these_daysshort"
    assert last.endswith("_these_daysFixture tool short")
    assert "…" not in "".join(lines) and "[second]" in "".join(lines)


def test_a_call_prints_the_result(echo: Shell) -> None:
    done = echo("call", "echo", "echo", '{"text": "hi 你好"}')
    assert (done.stdout, done.stderr, done.returncode) == ("hi 你好\n", "", 0)


def test_a_tool_s_failure_is_exit_code_1(quick: Shell) -> None:
    done = quick("call", "echo", "fail", '{"message": "no luck"}')
    assert (done.stdout, done.returncode) == ("no luck\n", 1)


def test_a_call_that_could_not_be_made_is_exit_code_2(quick: Shell) -> None:
    expected = {
        "exited with 7": ["call", "echo", "die", '{"code": 7}'],
        "did not answer within 0.5 s": ["call", "echo", "sleep", '{"seconds": 60}', "--timeout", "0.5"],
        "did you mean 'echo'?": ["call", "ecko", "echo"],
    }
    for text, done in zip(expected, quick.together(*expected.values()), strict=True):
        assert text in refused(done)


def test_json_is_what_the_server_answered(quick: Shell) -> None:
    assert quick.json("call", "echo", "structured")["structuredContent"] == {"answer": 42}


def test_json_tells_errors_too(quick: Shell) -> None:
    assert quick.json("call", "echo", "die", '{"code": 7}', code=2)["error"]["exit_code"] == 7
    assert quick.json("call", "ecko", "echo", code=2)["error"]["near"] == ["echo"]


def test_other_content_is_described(quick: Shell) -> None:
    assert quick("call", "echo", "image").stdout.startswith("[image block, image/png, ")


def test_progress_goes_to_stderr(quick: Shell) -> None:
    done = quick("call", "echo", "progress", '{"steps": 2}')
    assert done.stdout == "2 steps done\n"
    assert [line.strip() for line in done.stderr.splitlines()] == ["1/2", "2/2"]


def test_arguments_come_from_a_file_or_stdin(quick: Shell) -> None:
    (quick.folder / "arguments.json").write_text('{"text": "from a file"}')
    assert quick("call", "echo", "echo", "@arguments.json").stdout == "from a file\n"
    assert quick("call", "echo", "echo", "-", stdin='{"text": "from stdin"}').stdout == "from stdin\n"


def test_arguments_that_cannot_be_read_are_one_clear_line(quick: Shell) -> None:
    expected = {"{": "are not JSON", "[1]": "must be a JSON object, not list", "@nowhere.json": "'nowhere.json'"}
    commands = [["call", "echo", "echo", arguments] for arguments in expected]
    for told, done in zip(expected.values(), quick.together(*commands), strict=True):
        assert told in refused(done) and len(refused(done).splitlines()) == 1


def test_ctrl_c_during_a_call_ends_everything_with_130(echo: Shell, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    slow = stub(env={"LEDGER": str(ledger), "LEDGER_DELAY": "60"})
    write_config(tmp_path, name="hub.yaml", servers={"echo": slow})
    command = [*TOOLHUB, "call", "echo", "ledger", json.dumps({"key": "begun"})]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        eventually(lambda: ledger.exists() and ledger.read_text() == "begun\n", within=20)
        started = below(run.pid)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130 and out == b"" and b"Traceback" not in err
    assert len(started) == 3 and not any(process.is_alive for process in started)
