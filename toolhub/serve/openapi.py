"""The OpenAPI document of the task API, generated from its routes and bodies."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.model import Json
from toolhub.serve.responses import json_response
from toolhub.serve.schemas import Body, CallTool, OpenTask

_BODIES: dict[str, type[Body]] = {"open_task": OpenTask, "call": CallTool}
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
