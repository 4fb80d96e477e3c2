"""A task is used in the same way whether its hub runs in this process or in another one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from in_memory_hub import a_hub

from toolhub.channel.memory import MemoryServer
from toolhub.client.address import Address
from toolhub.client.lease_renewer import lease_renewer
from toolhub.client.task import RemoteTask
from toolhub.client.transport import Transport

pytestmark = pytest.mark.anyio

# Only an opening over the network can be partial.
ONLY_REMOTE = {"refused"}
# For the parts of a hub; and sandboxes, which only code in the hub's process can use.
ONLY_EMBEDDED = {
    "context", "counts", "describe", "in_use", "lease", "lease_left", "listen", "notify", "offered", "opened_at",
    "own_slots", "relay", "request", "sandboxes", "share_key", "specs", "statistics", "tool_with_headers",
    "tools_for_client", "warm_soon",
}  # fmt: skip


def a_remote_task() -> RemoteTask:
    """A task of a hub that does not exist; nothing is sent."""
    opened = {"id": "t1", "run": "r1", "servers": ["memory"], "lease_s": None}
    task = RemoteTask(Transport(Address(path="/nonexistent/hub.sock"), None), opened, timeout=None)
    task._dropped.detach()
    lease_renewer.drop(task._held)
    return task


def public_names(task: object) -> set[str]:
    return {name for name in dir(task) if not name.startswith("_")}


def form_of(task: object, name: str) -> tuple[str, Any]:
    value = getattr(task, name)
    if not inspect.ismethod(value):
        return "attribute", type(value)
    kind = "coroutine" if inspect.iscoroutinefunction(value) else "method"
    return kind, inspect.signature(value)


async def test_remote_and_embedded_tasks_have_the_same_attributes_for_agents_in_the_same_form() -> None:
    remote = a_remote_task()
    async with a_hub(MemoryServer()) as hub, hub.task("t1", run="r1") as embedded:
        common = public_names(remote) - ONLY_REMOTE
        assert common == public_names(embedded) - ONLY_EMBEDDED
        assert {name: form_of(remote, name) for name in common} == {name: form_of(embedded, name) for name in common}
        assert remote.servers == embedded.servers == ("memory",)
