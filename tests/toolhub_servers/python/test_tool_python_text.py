"""What models read from tool-python: the E2B SDK's own words, and a line for what it has no words for."""

from __future__ import annotations

import pytest
from toolhub_sandbox import CommandResult, Display, Execution, Failure, SandboxLimit, SandboxLost, SandboxNotFound
from toolhub_servers.python import texts as text

pytestmark = pytest.mark.quick


def test_an_execution_shows_results_output_and_error() -> None:
    execution = Execution("out\n", "", (Display({"text/plain": "4"}, True),), Failure("NameError", "x", "..."))
    assert text.format_execution(execution) == (
        "Execution(Results: [Result(4)], Logs: Logs(stdout: ['out\\n'], stderr: []), "
        "Error: ExecutionError(name='NameError', value='x', traceback='...'))"
    )


def test_a_picture_shows_as_its_format() -> None:
    execution = Execution(displays=(Display({"image/png": "iVBO"}),))
    assert text.format_execution(execution) == (
        "Execution(Results: [Result(Formats: png)], Logs: Logs(stdout: [], stderr: []), Error: None)"
    )


def test_a_command_that_failed_shows_all_it_printed_and_its_status() -> None:
    assert text.format_command(CommandResult("out\n", "why\n", 3)) == (
        "CommandResult(stderr='why\\n', stdout='out\\n', exit_code=3, error='exit status 3')"
    )


def test_a_command_that_timed_out_says_so_beside_what_it_printed() -> None:
    told = text.format_command(CommandResult("half\n", "", 124, timed_out=True))
    assert told.startswith("CommandResult(stderr='', stdout='half\\n', exit_code=124, error='timed out;")


def test_a_result_is_cut_at_20_000_characters_and_says_so() -> None:
    told = text.format_execution(Execution(stdout="x" * 30_000))
    assert (told[20_000:], told[:20_000][-1]) == (" [Result truncated due to length limit]", "x")
    assert text.cut("x" * 20_000) == "x" * 20_000
    assert text.format_command(CommandResult("x" * 30_000, "", 0)).endswith("x [Result truncated due to length limit]")


def test_lost_state_is_told_even_when_the_result_is_cut() -> None:
    lost = Execution(stdout="x" * 30_000, error=Failure("ExecutionTimeout", "60 s"), state="lost", timed_out=True)
    note = text.format_execution(lost, "sbx").splitlines()[-1]
    assert note.startswith("[WARNING]: The Python interpreter of sandbox sbx had to be restarted")
    assert "variables" in note and "files are still there" in note


def test_an_interruption_tells_that_the_state_is_kept() -> None:
    interrupted = Execution(error=Failure("ExecutionTimeout", "60 s"), timed_out=True)
    assert text.format_execution(interrupted, "sbx").splitlines()[1:] == [
        "[INFO]: The code ran too long and was interrupted; variables, imports and files are kept."
    ]


def test_a_sandbox_that_is_gone_anyway_is_not_said_to_have_lost_or_kept_its_state() -> None:
    lost = Execution(error=Failure("ExecutionTimeout", "60 s"), state="lost", timed_out=True)
    assert len(text.format_execution(lost).splitlines()) == 1


def test_dropped_output_is_told() -> None:
    assert "\n[INFO]: 7 bytes of output were dropped" in text.format_execution(Execution(dropped_bytes=7))
    assert "\n[INFO]: 7 bytes of output were dropped" in text.format_command(CommandResult("", "", 0, dropped_bytes=7))


def test_the_ids_that_models_invent_are_the_21_known_ones() -> None:
    assert len(text.INVALID_IDS) == 21
    assert {"default", "sandbox-0", "0", "none", "sandbox_01", "sandbox_12345"} <= text.INVALID_IDS


CONNECT = "[ERROR]: Failed to connect to sandbox s1. Make sure the sandbox is created and the sandbox_id is correct."
INVALID = "[ERROR]: 'auto' is not a valid sandbox_id. Please create a real sandbox first using the create_sandbox tool."


def test_an_unknown_sandbox_reads_as_a_failed_connection_and_an_invented_one_as_invalid() -> None:
    assert text.not_reached("s1", SandboxNotFound("gone")) == CONNECT
    assert text.not_reached("auto", SandboxNotFound("never was")) == INVALID
    assert text.not_reached("s1", OSError("other")) is None


def test_a_lost_sandbox_reads_as_a_failed_connection_with_the_reason_and_the_way_out() -> None:
    told = text.not_reached("s1", SandboxLost("out of memory"))
    assert told is not None
    assert told.startswith(f"{CONNECT}\n")
    assert "(out of memory)" in told and "create_sandbox" in told


def test_failures_keep_the_words_that_log_parsers_look_for() -> None:
    error = SandboxLimit("no room for another one", limit="max_per_task")
    said = "max_per_task: no room for another one"
    assert text.not_created(error) == (
        f"[ERROR]: Failed to create sandbox after 5 attempts: {said}, please retry later."
    )
    assert text.command_failed(error) == (
        f"[ERROR]: Failed to run command after 3 attempts.\n\nException type: SandboxLimit\nDetails: {said}"
    )
    assert text.code_failed("s1", error) == (
        f"[ERROR]: Failed to run code in sandbox s1 after 3 attempts. Exception type: SandboxLimit, Details: {said}"
    )
    assert text.stateless_failed(error) == (
        f"[ERROR]: Failed to run code in stateless mode. Exception type: SandboxLimit, Details: {said}"
    )


def test_a_limit_is_named_once() -> None:
    assert text.error_details(SandboxLimit("max_per_task is 2", limit="max_per_task")) == "max_per_task is 2"


def test_details_have_at_most_4_000_characters() -> None:
    assert text.error_details(ValueError("x" * 5_000)) == "x" * 4_000
