"""The thin client: uses a hub that runs in another process.

    async with toolhub.connect("unix:///run/toolhub/hub.sock") as hub, hub.task("t1") as task:
        result = await task.call("search", "google_search", {"q": "..."})

Needs only the base install and imports no `mcp`, so it lives beside any version of it. Everything is lazy, and
one `RemoteHub` may be used from any thread, event loop and forked child.
"""

from __future__ import annotations

import os

from toolhub.client.address import Address
from toolhub.client.errors import HubLost, HubUnreachable
from toolhub.client.hub import RemoteHub
from toolhub.client.task import RemoteTask

__all__ = ["HubLost", "HubUnreachable", "RemoteHub", "RemoteTask", "connect"]


def connect(url: str, *, token: str | None = None, timeout: float | None = None) -> RemoteHub:
    """Return a client of the hub at `url`; nothing is sent before the first use.

    url: `http://host:port`, `unix:///path/hub.sock`, or a path ending in `.sock`.
    token: default is the environment variable TOOLHUB_TOKEN.
    timeout: seconds for calls that do not say; None leaves it to the hub's config.
    Raises ConfigError when the url cannot be read.
    """
    if token is None:
        token = os.environ.get("TOOLHUB_TOKEN")
    return RemoteHub(Address.parse(url), token=token or None, timeout=timeout)
