"""A task of a running hub that somebody else holds, for as long as a command needs it."""

from __future__ import annotations

from toolhub.client.hub import RemoteHub
from toolhub.client.lease_renewer import lease_renewer
from toolhub.client.task import RemoteTask


class BorrowedTask(RemoteTask):
    """It is neither renewed nor closed from here: it lives and ends with whoever opened it."""

    def __init__(self, hub: RemoteHub, task_id: str) -> None:
        super().__init__(hub._transport, {"id": task_id, "run": "", "servers": ()}, timeout=None)
        self._dropped.detach()
        lease_renewer.drop(self._held)


async def is_open(hub: RemoteHub, task_id: str) -> bool:
    """Whether somebody holds a task of this name. Raises what `RemoteHub.statistics` raises."""
    return any(task["id"] == task_id for task in (await hub.statistics())["tasks"])
