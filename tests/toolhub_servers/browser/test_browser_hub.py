"""The server as the hub runs it, on either event loop."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.toolhub_servers.browser.browser_site import Website
from toolhub import Hub, parse_config

pytestmark = pytest.mark.anyio

PATIENCE = 60


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param}


async def test_tasks_of_a_hub_have_browsers_of_their_own(site: Website) -> None:
    server = {"builtin": "browser", "options": {"allow_private": [site.host]}}
    storage = {"url": site.url("/storage")}
    with anyio.fail_after(PATIENCE):
        async with Hub(parse_config({"servers": {"browser": server}})) as hub:
            async with hub.task("one") as one, hub.task("two") as two:
                for _ in range(2):
                    seen = await one.call("browser", "browser_navigate", storage)
                assert "storage kept" in str(seen.text)
                assert "storage null" in str((await two.call("browser", "browser_navigate", storage)).text)
