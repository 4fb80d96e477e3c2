"""The thin client: uses a hub that runs in another process.

    async with toolhub.connect("unix:///run/toolhub/hub.sock") as hub, hub.task("t1") as task:
        result = await task.call("search", "google_search", {"q": "..."})

It needs only the base install and does not import `mcp`, so it works beside any version of `mcp`. It connects on first
use. One `RemoteHub` may be used from any thread, event loop and forked child.
"""

from __future__ import annotations

import os

from toolhub.client.address import Address
from toolhub.client.hub import RemoteHub
from toolhub.client.task import RemoteTask
from toolhub.errors import HubLost, HubUnreachable

__all__ = ["HubLost", "HubUnreachable", "RemoteHub", "RemoteTask", "connect"]


def connect(url: str, *, token: str | None = None, timeout: float | None = None) -> RemoteHub:
    """Return a client of the hub at `url`. It sends nothing before its first use.

    url: `http://host:port`, `unix:///path/hub.sock`, or a path ending in `.sock`.
    token: default is the environment variable TOOLHUB_TOKEN.
    timeout: seconds for calls without a timeout of their own; None: the hub's config decides.
    Raises ConfigError if the url cannot be parsed.
    """
    if token is None:
        token = os.environ.get("TOOLHUB_TOKEN")
    return RemoteHub(Address.parse(url), token=token or None, timeout=timeout)
