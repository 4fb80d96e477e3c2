"""The request bodies of the task API, and the OpenAPI document that is generated from them and the routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.config import SpeculationMode
from toolhub.config.section import Seconds, Weight
from toolhub.model import Json
from toolhub.serve.responses import json_response


class RequestBody(BaseModel):
    # pydantic would keep the latest 16,384 strings of all bodies: ids of tasks and texts that never come again. They
    # lie between what is freed, so that a hub could return little of the memory of a busy hour.
    model_config = ConfigDict(extra="forbid", frozen=True, cache_strings="keys")


class OpenTaskRequest(RequestBody):
    """A task to open. It ends by DELETE, with the hub, or when its client is silent for longer than its lease."""

    id: str | None = None
    """1 to 128 letters, digits and `._:-`; the first is no dot and no hyphen. The same rule holds for `run` and for
    labels that the config uses as `${task.<label>}`."""
    run: str = Field(default="", max_length=200)
    """The run that the task belongs to. Runs share scarce capacity fairly."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Values for `${task.<label>}` in the config."""
    servers: dict[str, dict[str, Any] | None] | None = None
    """By name: the task's own server, in the form of the config's `servers`, or null for the hub's server with that
    name. A server of the task's own needs the hub's unix socket or `allow_inline_servers`; null needs neither."""
    only_these: bool = False
    """Leave out the hub's servers that `servers` does not name."""
    partial: bool = False
    """Open the task without the `servers` that cannot be used. The answer lists them under `refused`."""
    lease_s: Seconds | None = None
    """How long the task lives without a sign of life; null: `limits.task_lease_s`."""
    weight: Weight = 1
    """The task's share of scarce capacity, relative to the other tasks of its run."""
    speculation: SpeculationMode | None = None
    """`none` or `exact`: begin less work before it is asked for than the hub's `speculation.mode` allows."""


class OpenRolloutRequest(RequestBody):
    """A rollout to open. It ends by DELETE, with the hub, or when its trainer is silent for longer than its lease."""

    idempotency_key: str | None = Field(default=None, min_length=1, max_length=200)
    """A value of your own for this rollout. A repeated request with the same key and body gets the same rollout. The
    key of a rollout that has ended opens no other."""
    run: str = Field(default="", max_length=200)
    """The run that the rollout belongs to, such as a step of the training. Runs share scarce capacity fairly."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Values for `${task.<label>}` in the config."""
    servers: list[str] | None = None
    """The names of the hub's servers that the rollout uses; null: all."""
    lease_s: Seconds | None = None
    """How long the rollout lives without a sign of life; null: `limits.task_lease_s`. Calls and `renew` are such
    signs."""
    weight: Weight = 1
    """The rollout's share of scarce capacity, relative to the others of its run."""


class CallToolRequest(RequestBody):
    """One tool call. `timeout_s` covers everything, also the time in queues."""

    server: str
    """The name of one of the task's servers."""
    tool: str
    """The name of one of its tools."""
    arguments: dict[str, Any] | None = None
    """The tool's arguments."""
    timeout_s: Seconds | None = None
    """Null: the server's `call_timeout_s`, or the tool's."""


class PrefetchRequest(RequestBody):
    """A call that is being written, with the arguments that are known so far."""

    server: str
    """The name of one of the task's servers."""
    tool: str
    """The name of one of its tools."""
    arguments: dict[str, Any]
    """The arguments that are complete."""


_BODIES: dict[str, type[RequestBody]] = {
    "open_task": OpenTaskRequest,
    "call": CallToolRequest,
    "prefetch": PrefetchRequest,
    "open_rollout": OpenRolloutRequest,
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "description": "class name of toolhub.errors"},
                "message": {"type": "string"},
                "help": {"type": "string", "description": "the command that prints the cause and the fix"},
                "sent": {
                    "enum": ["no", "maybe"],
                    "description": "no: the call did not reach the server; maybe: the server may have executed it",
                },
            },
        }
    },
}


def describe(routes: list[Route], version: str) -> Json:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, Json] = {}
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            paths.setdefault(route.path, {})[method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "toolhub task API", "version": version},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR} | {model.__name__: model.model_json_schema() for model in _BODIES.values()},
        },
    }


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": (route.endpoint.__doc__ or "").strip(),
        "responses": {
            "2XX": {"description": "done"},
            "default": {
                "description": "an error",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if "{id}" in route.path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.name == "tools":
        operation["parameters"] += [
            {"name": "server", "in": "query", "schema": {"type": "string"}},
            {"name": "fresh", "in": "query", "schema": {"type": "boolean", "default": False}},
        ]
    if body := _BODIES.get(route.name):
        schema = {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}
        operation["requestBody"] = {"content": {"application/json": schema}}
    return operation


def openapi_route(routes: list[Route], version: str) -> Route:
    document = describe(routes, version)

    async def openapi(request: Request) -> Response:
        return json_response(document)

    return Route("/openapi.json", openapi)
