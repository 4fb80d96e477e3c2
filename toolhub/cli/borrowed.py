"""Use a task of a running hub that another client has opened."""

from __future__ import annotations

from toolhub.client.hub import RemoteHub
from toolhub.client.lease_renewer import lease_renewer
from toolhub.client.task import RemoteTask


class BorrowedTask(RemoteTask):
    """A task that this process neither renews nor closes. The client that opened it does that."""

    def __init__(self, hub: RemoteHub, task_id: str) -> None:
        super().__init__(hub._transport, {"id": task_id, "run": "", "servers": ()}, timeout=None)
        self._dropped.detach()
        lease_renewer.drop(self._held)


async def is_open(hub: RemoteHub, task_id: str) -> bool:
    """Whether the hub has an open task with this id. Raises what `RemoteHub.statistics` raises."""
    return any(task["id"] == task_id for task in (await hub.statistics())["tasks"])
