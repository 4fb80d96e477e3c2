"""The pages for programs: metrics, health, and the description of the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from served_hub import ServedHub, Task, error_of, metric, text_of

from toolhub import __version__
from toolhub.hub import Hub
from toolhub.serve.api import TaskApi
from toolhub.serve.rollouts import Rollouts

Json = dict[str, Any]


def test_health_says_who_answers(hub: ServedHub, client: httpx2.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "pid": hub.process.pid, "version": __version__}
    assert client.get("/readyz").json() == {"ready": True, "broken_servers": []}


def test_calls_are_counted_by_server_tool_and_outcome(client: httpx2.Client, task: Task) -> None:
    def count(tool: str, outcome: str) -> float:
        return metric(client, "toolhub_call_seconds_count", server="echo", tool=tool, outcome=outcome)

    text_of(task.call("echo", text="x"))
    text_of(task.call("sleep", seconds=0))
    text_of(task.call("sleep", seconds=0))
    assert count("echo", "ok") == 1 and count("sleep", "ok") == 2
    error_of(task.call("sleep", seconds=60, timeout_s=0.1), 504)
    assert count("sleep", "CallTimeout") == 1


def test_a_tool_that_never_answered_is_counted_without_its_name(client: httpx2.Client, task: Task) -> None:
    task.call("fail", message="x")
    task.call("die")
    for outcome in ("tool_error", "SessionLost"):
        assert metric(client, "toolhub_call_seconds_count", server="echo", tool="", outcome=outcome) >= 1


def test_tasks_slots_starts_and_deaths_are_counted(client: httpx2.Client, task: Task) -> None:
    names = ("toolhub_session_starts_total", "toolhub_session_deaths_total")
    before = {name: metric(client, name, server="echo") for name in names}
    task.call("die")
    task.call("pid")
    assert metric(client, "toolhub_tasks") == 1
    assert metric(client, "toolhub_slots", server="echo", state="LIVE") == 1
    assert (
        metric(client, "toolhub_limiter_in_use", limiter="the hub")
        == metric(client, "toolhub_limiter_waiting", limiter="the hub")
        == 0
    )
    assert metric(client, "toolhub_session_starts_total", server="echo") == before["toolhub_session_starts_total"] + 2
    assert metric(client, "toolhub_session_deaths_total", server="echo") == before["toolhub_session_deaths_total"] + 1


@pytest.mark.parametrize("server", ["echo", "made-up-server"])
def test_a_made_up_name_never_becomes_a_label(client: httpx2.Client, task: Task, server: str) -> None:
    """Models make up names; a label, once there, is there for ever."""
    task.call("made-up-tool", server)
    assert "made-up" not in client.get("/metrics").text


# --- OpenAPI --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(hub: ServedHub) -> Json:
    with hub.client() as client:
        described: Json = client.get("/openapi.json").json()
        return described


def test_every_route_is_described(document: Json) -> None:
    routes = [*TaskApi(Hub(), allow_inline=False, lease=1).routes(), *Rollouts(Hub(), lease=1).routes()]
    expected = {(route.path, method.lower()) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == expected
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"] and operation["operationId"] and "default" in operation["responses"]


def test_path_parameters_are_described(document: Json) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
            assert named == (["id"] if "{id}" in path else [])


def nested(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nested(child)


def test_references_lead_somewhere(document: Json) -> None:
    references = [part["$ref"] for part in nested(document) if "$ref" in part]
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references and set(references) <= known


def test_schemas_are_valid_and_describe_what_is_accepted(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    accepts = jsonschema.Draft202012Validator(schemas["CallToolRequest"]).is_valid
    assert accepts({"server": "a", "tool": "b", "arguments": {}, "timeout_s": 1})
    assert not accepts({"server": "a"}) and not accepts({"server": "a", "tool": "b", "more": 1})


def test_errors_are_as_described(document: Json, client: httpx2.Client, task: Task) -> None:
    validator = jsonschema.Draft202012Validator(document["components"]["schemas"]["Error"])
    bad = client.post("/v1/tasks", content=b"{", headers={"Content-Type": "application/json"})
    for answer in (task.call("die"), task.call("x", "nobody"), bad, client.get("/v1/tasks/x")):
        validator.validate(answer.json())
