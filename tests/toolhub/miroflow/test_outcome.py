"""Bringing errors of every server framework to the form that agent loops take back turns for."""

from __future__ import annotations

import pytest

from toolhub import (
    CallTimeout,
    CircuitOpen,
    HubClosed,
    Overloaded,
    ProtocolViolation,
    Result,
    SessionLost,
    StartError,
    TaskClosed,
)
from toolhub.client import HubLost, HubUnreachable
from toolhub.miroflow.outcome import RefusedByServer, failure_of, normalised, text_of
from toolhub.miroflow.profile import PROFILES

pytestmark = pytest.mark.quick
THINKER, FLOW = PROFILES["mirothinker"], PROFILES["miroflow"]


@pytest.mark.parametrize(
    "text",
    [
        "Unknown tool: nope",  # mcp 1.10 and 1.30, fastmcp 2.10 and 2.14, mcp 2.3
        "Unknown tool: 'nope'",  # fastmcp 4.1
        "MCP error -32602: Tool nope not found",  # the TypeScript SDK
        "Tool 'nope' not found",
    ],
)
def test_an_unknown_tool_reads_the_same_from_every_framework(text: str) -> None:
    assert normalised("nope", text) == "Unknown tool: nope"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Error executing tool boom: kaboom", "Error executing tool boom: kaboom"),  # mcp 1.x
        ("Error executing tool boom", "Error executing tool boom"),  # mcp 2.3 masks the message
        ("Error calling tool 'boom': kaboom", "Error executing tool boom: kaboom"),  # fastmcp
        ("Error calling tool 'boom': a\nb: c", "Error executing tool boom: a\nb: c"),
        ("Input validation error: 'text' is a required property", None),  # fastmcp 2.10
        ("1 validation error for call[boom]\ntext\n  Missing", None),  # fastmcp 2.14 and 4.1
        ("Unknown tool: another", None),  # something a tool itself says
        ("disk full", None),
    ],
)
def test_every_other_error_names_the_tool_and_keeps_its_message(text: str, expected: str | None) -> None:
    assert normalised("boom", text) == (expected or f"Error executing tool boom: {text}")


def result(*texts: str | None, is_error: bool = False, **fields: object) -> Result:
    blocks = [{"type": "text", "text": text} if text is not None else {"type": "image"} for text in texts]
    return Result({"content": blocks, "isError": is_error, **fields})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(("a", "b"), "b"), (("a", None), "a"), ((None,), ""), ((), ""), (("a", ""), ""), (("a", " "), " ")],
)
def test_the_last_text_block_is_the_result(texts: tuple[str | None, ...], expected: str) -> None:
    assert text_of(result(*texts), "s", "t", THINKER, legacy_errors=False) == expected


def test_the_browser_answers_with_its_first_block() -> None:
    assert text_of(result("a", "b"), "playwright", "t", THINKER, legacy_errors=False) == "a"


@pytest.mark.parametrize(
    ("server", "texts", "expected"),
    [
        ("s", (), "Tool 't' completed but returned no content - this may be expected or indicate an issue"),
        ("s", ("\n",), "Tool 't' completed but returned empty text - this may be expected or indicate an issue"),
        (
            "playwright",
            ("",),
            "Tool 't' returned empty result - this may be expected (e.g., delete operations)"
            " or indicate an issue with tool execution",
        ),
    ],
)
def test_miroflow_explains_an_empty_result(server: str, texts: tuple[str, ...], expected: str) -> None:
    for profile in (FLOW, PROFILES["miroflow-tool"]):
        assert text_of(result(*texts), server, "t", profile, legacy_errors=False) == expected


def test_legacy_errors_are_left_as_they_are() -> None:
    error = result("Error calling tool 'boom': kaboom", is_error=True)
    assert text_of(error, "s", "boom", THINKER, legacy_errors=True) == "Error calling tool 'boom': kaboom"


def refused(code: int) -> Result:
    meta = {"toolhub/jsonrpc_error": {"code": code, "message": "no"}}
    return result("no", is_error=True, _meta=meta)


def test_a_protocol_error_about_the_arguments_is_for_the_model() -> None:
    assert text_of(refused(-32602), "s", "t", THINKER, legacy_errors=False) == "Error executing tool t: no"


@pytest.mark.parametrize(("code", "legacy"), [(-32603, False), (-32602, True)])
def test_any_other_protocol_error_is_a_failed_execution(code: int, legacy: bool) -> None:
    with pytest.raises(RefusedByServer, match="^no$"):
        text_of(refused(code), "s", "t", THINKER, legacy_errors=legacy)


@pytest.mark.parametrize(
    "exc",
    [
        StartError("m"),
        CircuitOpen("m"),
        Overloaded("m"),
        HubClosed("m"),
        HubUnreachable("m"),
        TaskClosed("m"),
        TypeError("m"),
    ],
)
def test_what_never_reached_the_server_is_a_failed_call(exc: Exception) -> None:
    assert failure_of(exc).text == "Tool call failed: m"


@pytest.mark.parametrize(
    "exc",
    [
        SessionLost("m"),
        CallTimeout("m", timeout=1),
        ProtocolViolation("m"),
        HubLost("m"),
        TaskClosed("m", sent="maybe"),
    ],
)
def test_what_may_have_been_executed_says_so(exc: Exception) -> None:
    assert failure_of(exc).text.startswith("Tool execution failed: OUTCOME UNKNOWN")


def test_what_was_certainly_not_sent_does_not_say_so() -> None:
    assert failure_of(SessionLost("m", sent="no")).text == "Tool execution failed: m"
    assert failure_of(CallTimeout("m", timeout=1, sent="no")).text == "Tool execution failed: m"


def test_a_failure_is_never_blank() -> None:
    assert failure_of(ValueError()).text == "Tool call failed: ValueError()"
