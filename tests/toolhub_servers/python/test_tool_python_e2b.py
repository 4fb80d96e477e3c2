"""The results of tool-python are, letter by letter, what the E2B SDK prints for the same code."""

from __future__ import annotations

import base64

import pytest
from toolhub_sandbox import CommandResult, Display, Execution, Failure
from toolhub_servers.python import texts as text

e2b = pytest.importorskip("e2b_code_interpreter", reason="needs the extra 'e2b'")
commands = pytest.importorskip("e2b.sandbox.commands.command_handle")

pytestmark = pytest.mark.quick

PNG = base64.b64encode(b"\x89PNG").decode()
TRACEBACK = "Traceback (most recent call last):\n  ...\nNameError: name 'x' is not defined"

# What the sandbox gives, and what the service gives to the SDK for the same code.
EXECUTIONS = {
    "nothing": (Execution(), e2b.Execution()),
    "a number": (
        Execution(displays=(Display({"text/plain": "4"}, is_result=True),)),
        e2b.Execution(results=[e2b.Result(text="4", is_main_result=True)]),
    ),
    "a string, without its quotes": (
        Execution(displays=(Display({"text/plain": "'it'"}, True), Display({"text/plain": '"it\'s"'}, True))),
        e2b.Execution(results=[e2b.Result(text="it"), e2b.Result(text="it's")]),
    ),
    "an empty string": (
        Execution(displays=(Display({"text/plain": "''"}, is_result=True),)),
        e2b.Execution(results=[e2b.Result(text="", is_main_result=True)]),
    ),
    "one quote": (
        Execution(displays=(Display({"text/plain": "say '"}, is_result=True),)),
        e2b.Execution(results=[e2b.Result(text="say '", is_main_result=True)]),
    ),
    "a picture with a text": (
        Execution(displays=(Display({"text/plain": "<Figure size 640x480>", "image/png": PNG}),)),
        e2b.Execution(results=[e2b.Result(text="<Figure size 640x480>", png=PNG)]),
    ),
    "pictures without a text": (
        Execution(displays=(Display({"image/png": PNG}), Display({"image/jpeg": "ab", "image/svg+xml": "<svg/>"}))),
        e2b.Execution(results=[e2b.Result(png=PNG), e2b.Result(jpeg="ab", svg="<svg/>")]),
    ),
    "html only": (
        Execution(displays=(Display({"text/html": "<b>1</b>"}),)),
        e2b.Execution(results=[e2b.Result(html="<b>1</b>")]),
    ),
    "every format, in any order": (
        Execution(displays=(Display(dict.fromkeys(reversed(list(text.FORMATS)[1:]), "x")),)),
        e2b.Execution(results=[e2b.Result(**dict.fromkeys(list(text.FORMATS.values())[1:], "x"))]),
    ),
    "a format of its own": (
        Execution(displays=(Display({"application/x-own": "x", "text/html": "<b>"}),)),
        e2b.Execution(results=[e2b.Result(html="<b>", extra={"application/x-own": "x"})]),
    ),
    "output": (
        Execution(stdout="a\nit's \\ é\n", stderr='"warning"\n'),
        e2b.Execution(logs=e2b.Logs(stdout=["a\nit's \\ é\n"], stderr=['"warning"\n'])),
    ),
    "an error": (
        Execution(stdout="before\n", error=Failure("NameError", "name 'x' is not defined", TRACEBACK)),
        e2b.Execution(
            logs=e2b.Logs(stdout=["before\n"]),
            error=e2b.ExecutionError("NameError", "name 'x' is not defined", TRACEBACK),
        ),
    ),
}


@pytest.mark.parametrize("case", EXECUTIONS)
def test_an_execution_reads_as_the_sdk_prints_it(case: str) -> None:
    ours, theirs = EXECUTIONS[case]
    assert text.format_execution(ours, "sbx") == str(theirs)


@pytest.mark.parametrize(
    ("ours", "error"),
    [
        (CommandResult("out\n", "", 0), ""),
        (CommandResult("it's", 'a "b" \\', 3), "exit status 3"),
        (CommandResult("half", "", 143), "exit status 143"),
    ],
)
def test_a_command_reads_as_the_sdk_prints_it(ours: CommandResult, error: str) -> None:
    theirs = commands.CommandResult(stderr=ours.stderr, stdout=ours.stdout, exit_code=ours.exit_code, error=error)
    assert text.format_command(ours) == str(theirs)


def test_a_cut_result_begins_as_the_sdk_prints_it() -> None:
    printed = str(e2b.Execution(logs=e2b.Logs(stdout=["x" * 30_000])))
    told = text.format_execution(Execution(stdout="x" * 30_000))
    assert told == printed[:20_000] + " [Result truncated due to length limit]"
