"""A remote call fails like a local one: errors and tools survive the task API's JSON."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from toolhub import errors
from toolhub.errors import ToolhubError
from toolhub.model import ToolInfo
from toolhub.wire import STATUS, error_from_wire, error_to_wire, status_of, tool_from_wire, tool_to_wire

pytestmark = pytest.mark.quick

WHERE: Any = {"call_id": "t1-7", "server": "files", "tool": "read"}
ERRORS = [
    errors.ToolhubError("something"),
    errors.ConfigError("expected a number", path="hub.yaml", line=3, key="limits.queue"),
    errors.MissingExtra("hub", "toolhub serve"),
    errors.ToolNotFound("no tool 'reed'", near=["read", "readdir"]),
    errors.CallError("failed", **WHERE, sent="no"),
    errors.Overloaded("full", retry_after=1.5, **WHERE),
    errors.StartError("did not start", stderr_tail=["line 1", "line 2"], **WHERE),
    errors.CallTimeout("too slow", timeout=2.5, sent="no", **WHERE),
    errors.SessionLost("died", exit_code=-9, state_lost=True, **WHERE),
    errors.CircuitOpen("gave up", since=12.5, deaths=4, **WHERE),
    errors.NotRecorded("the cassette has no recording of it", **WHERE),
    errors.ProtocolViolation("nonsense", **WHERE),
    errors.TaskClosed("closed"),
    errors.HubClosed("closing"),
    errors.Unauthorized("no token"),
]
# The client raises these itself; no hub answers with them.
OF_THE_CLIENT = {errors.HubUnreachable, errors.HubLost, errors.HubTimeout}
CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ToolhubError) and kind not in OF_THE_CLIENT
]


def test_the_examples_cover_every_class():
    assert {type(error) for error in ERRORS} == set(CLASSES)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_survives_the_wire_with_its_fields(error):
    rebuilt = error_from_wire(json.loads(json.dumps(error_to_wire(error))))
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)
    assert vars(rebuilt) == vars(error)


def test_an_unknown_type_becomes_a_plain_toolhub_error():
    rebuilt = error_from_wire({"type": "FromTheFuture", "message": "new trouble", "sent": "no"})
    assert type(rebuilt) is ToolhubError
    assert str(rebuilt) == "new trouble"


def test_a_foreign_class_cannot_be_named():
    assert type(error_from_wire({"type": "KeyboardInterrupt", "message": "stop"})) is ToolhubError


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_without_fields_or_with_unknown_ones_can_still_be_read(kind):
    rebuilt = error_from_wire({"type": kind.__name__, "invented": 1})
    assert isinstance(rebuilt, ToolhubError)
    assert str(rebuilt) == "unknown error"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_a_status_of_its_own_choosing(kind):
    assert 400 <= STATUS[kind] < 600


def test_a_subclass_from_elsewhere_has_the_status_of_its_base():
    class Special(errors.Overloaded):
        pass

    assert status_of(Special("full")) == STATUS[errors.Overloaded] == 429


@pytest.mark.parametrize(
    ("kind", "sent"),
    [(errors.Overloaded, "no"), (errors.StartError, "no"), (errors.CircuitOpen, "no"), (errors.CallError, "maybe")],
)
def test_an_error_says_by_itself_whether_the_call_was_sent(kind, sent):
    assert kind("message").sent == sent
    assert kind("message", sent="maybe").sent == "maybe"


def test_near_names_are_offered_in_the_message():
    assert str(errors.ToolNotFound("no tool 'reed'", near=["read"])) == "no tool 'reed'; did you mean 'read'?"


def test_a_config_error_names_file_line_and_key_before_the_reason():
    assert str(ERRORS[1]) == "hub.yaml:3: limits.queue: expected a number"


def test_a_tool_survives_the_wire_with_fields_nobody_knows():
    raw = {"name": "read", "inputSchema": {"type": "object"}, "x-vendor": [1, {"deep": None}]}
    tool = ToolInfo.from_wire("files", raw)
    assert tool_from_wire(json.loads(json.dumps(tool_to_wire(tool)))) == tool
    assert tool.raw == raw


@pytest.mark.parametrize("schema", [None, "object", []])
def test_a_tool_with_a_nonsense_schema_takes_anything(schema):
    assert ToolInfo.from_wire("files", {"name": "read", "inputSchema": schema}).input_schema == {}
