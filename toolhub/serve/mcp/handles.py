"""State for clients of revision 2026-07-28, which have no sessions.

Strangers must not share what keeps state. So a tool call to such a server, from a client that names no task, gets a
task of its own, and its result carries the task's id as a handle. With the handle later requests reach the same state:
in the header `X-Toolhub-Task`, in `_meta` as `toolhub/task`, or, for models, as the argument `toolhub_task`. Where a
server needs more input from the client, the handle travels in `requestState`, which every client sends back; where it
begins a task of its own (the tasks extension), in the task's id.
"""

from __future__ import annotations

from dataclasses import replace

from toolhub.model import Json
from toolhub.serve.mcp.client import ClientRequest

HANDLE_META, HANDLE_ARGUMENT = "toolhub/task", "toolhub_task"
_PREFIX = "toolhub:"


def taken_handle(params: Json | None) -> tuple[str | None, Json | None]:
    """Return the handle in a request, and its params without it."""
    if params is None:
        return None, None
    for where, key in (("_meta", HANDLE_META), ("arguments", HANDLE_ARGUMENT)):
        inner = params.get(where)
        if isinstance(inner, dict) and isinstance(handle := inner.get(key), str):
            return handle, {**params, where: {name: value for name, value in inner.items() if name != key}}
    for key in ("requestState", "taskId"):
        value = params.get(key)
        if isinstance(value, str) and value.startswith(_PREFIX):
            handle, has_value, original = value.removeprefix(_PREFIX).partition(":")
            kept = {name: value for name, value in params.items() if name != key}
            return handle, {**kept, key: original} if has_value else kept
    return None, params


def carrying(result: Json, handle: str) -> Json:
    """Return the result with the handle in what every client sends back: `requestState`, or the id of a task."""
    if result.get("resultType") == "input_required":
        state = result.get("requestState")
        return {**result, "requestState": _PREFIX + handle + (f":{state}" if isinstance(state, str) else "")}
    if isinstance(task_id := result.get("taskId"), str):
        return {**result, "taskId": f"{_PREFIX}{handle}:{task_id}"}
    return result


def with_handle(result: Json, handle: str) -> Json:
    """Return the result with its task's handle."""
    meta = result.get("_meta")
    return carrying({**result, "_meta": {**(meta if isinstance(meta, dict) else {}), HANDLE_META: handle}}, handle)


async def call_tool(server: str, request: ClientRequest, params: Json | None) -> Json:
    """Pass a tool call on: in the client's task, or in one of its own where the server would mix clients."""
    if request.new_task is None or not await _keeps_state(server, request):
        return await request.task.relay(server, request.relayed(params))
    task = await request.new_task()
    own = replace(request, task=task, new_task=None)
    return with_handle(await task.relay(server, own.relayed(params)), task.id)


async def _keeps_state(server: str, request: ClientRequest) -> bool:
    """Whether the calls of two clients would meet in one process of the server."""
    spec = request.task.specs[server]
    if spec.share != "task" or not spec.is_stateful:
        return False
    # A modern server over HTTP knows no sessions either, so another connection would be no other state.
    return spec.transport != "http" or (await request.task.describe(server, request.relayed())).era == "handshake"
