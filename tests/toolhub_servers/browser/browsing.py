"""Using the browser server in tests, as a task of a hub would, and looking at the processes behind it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import psutil
from mcp import Client
from mcp.types import ImageContent, TextContent
from toolhub_servers.browser import BrowserSettings, create_server
from toolhub_servers.browser.shared import BrowserStatistics, open_shared

from tests.toolhub_servers.browser.browser_site import Website
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import SharedResources


class Task:
    """One task's browser, with paths of the test's website in place of addresses."""

    def __init__(self, client: Client, site: Website) -> None:
        self.client = client
        self.site = site

    async def call(self, tool: str, **arguments: Any) -> str:
        """Return the text of a call; failures are texts, too, and start with [ERROR]."""
        result = await self.client.call_tool(f"browser_{tool}", arguments)
        assert not result.is_error, result.content
        text = result.content[0]
        assert isinstance(text, TextContent)
        return text.text

    async def open(self, path: str) -> str:
        return await self.call("navigate", url=self.site.url(path))

    async def ref(self, element: str) -> str:
        """The reference of an element, such as `button "Go"`, in a new snapshot."""
        return ref_in(await self.call("snapshot"), element)

    async def click(self, element: str) -> str:
        return await self.call("click", ref=await self.ref(element), element=element)

    async def picture(self, **arguments: Any) -> ImageContent:
        result = await self.client.call_tool("browser_take_screenshot", arguments)
        image = result.content[-1]
        assert isinstance(image, ImageContent), result.content
        return image


def ref_in(snapshot: str, element: str) -> str:
    found = re.search(re.escape(element) + r".*?\[ref=(\w+)\]", snapshot)
    assert found is not None, f"no {element} in {snapshot}"
    return found[1]


@asynccontextmanager
async def open_task(
    resources: SharedResources, site: Website, owner: str = "task", **options: Any
) -> AsyncIterator[Task]:
    """A server with its session, which may reach the website unless told otherwise."""
    host = BuiltinContext(owner=owner, resources=resources)
    async with Client(create_server(context=host, **{"allow_private": [site.host], **options})) as client:
        yield Task(client, site)


async def statistics(resources: SharedResources) -> BrowserStatistics:
    return (await open_shared(resources, BrowserSettings())).statistics()


def browser_processes() -> list[psutil.Process]:
    """Chromium and the driver, as descendants of this process."""
    return [process for process in psutil.Process().children(recursive=True) if _is_browser(process)]


def chromium_roots() -> list[psutil.Process]:
    """The main process of each Chromium."""
    return [p for p in browser_processes() if "--remote-debugging-pipe" in _command(p) and not _is_child(p)]


def _is_browser(process: psutil.Process) -> bool:
    command = _command(process)
    return bool(command) and ("chrom" in command[0] or "run-driver" in command)


def _is_child(process: psutil.Process) -> bool:
    return any(argument.startswith("--type=") for argument in _command(process))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Open(Protocol):
    """Opens the browser of a task."""

    def __call__(self, owner: str = "task", **options: Any) -> AbstractAsyncContextManager[Task]: ...
