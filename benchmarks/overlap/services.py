"""A search service, and a stand-in for Jina Reader and for the model that extracts, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.server import MCPServer
from toolhub_servers.serving.server import make_server, read_only_tool

from benchmarks.overlap.tasks import EXTRACT_S, Search, SitePage

SITE = "http://pages.example"
_EXTRACTED = {"choices": [{"message": {"role": "assistant", "content": "It is 12 metres deep."}}], "usage": {}}


class SlowServices:
    """What the tools use. Everything takes `scale` times its seconds."""

    def __init__(self, scale: float) -> None:
        self.address = ""
        self.sent_bytes = 0
        self.served: Counter[str] = Counter()
        """Pages that were sent, by path."""
        self._pages: dict[str, SitePage] = {}
        self._searches: dict[str, Search] = {}
        self._scale = scale

    def know(self, searches: Mapping[str, Search]) -> None:
        """Have these searches and what they find, and count anew."""
        self._searches = dict(searches)
        self._pages = {page.path: page for search in searches.values() for page in search.found}
        self.sent_bytes = 0
        self.served.clear()

    async def search(self, q: str) -> str:
        search = self._searches[q]
        await asyncio.sleep(search.seconds * self._scale)
        return json.dumps({"organic": [{"link": SITE + page.path} for page in search.found]})

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                if head.startswith("POST"):
                    kind, body = "application/json", await self._extract(head, reader)
                else:
                    kind, body = "text/plain", await self._page(head.split(" ", 2)[1])
                fields = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(fields.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _page(self, target: str) -> bytes:
        page = self._pages[target.partition(SITE)[2]]
        await asyncio.sleep(page.seconds * self._scale)
        body = b"All work and no play. " * (page.size // 22 + 1)
        self.sent_bytes += len(body)
        self.served[page.path] += 1
        return body

    async def _extract(self, head: str, reader: asyncio.StreamReader) -> bytes:
        length = next(
            line.partition(":")[2] for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        await reader.readexactly(int(length))
        await asyncio.sleep(EXTRACT_S * self._scale)
        return json.dumps(_EXTRACTED).encode()


_SERVICES: dict[str, SlowServices] = {}


@asynccontextmanager
async def open_services(scale: float) -> AsyncIterator[SlowServices]:
    services = SlowServices(scale)
    async with await asyncio.start_server(services.answer, "127.0.0.1", 0) as server:
        services.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        _SERVICES[services.address] = services
        try:
            yield services
        finally:
            del _SERVICES[services.address]


def create_search(*, address: str) -> MCPServer:
    """The builtin server `search`, of the services at an address of this process."""

    async def google_search(q: str) -> str:
        """Search.

        Args:
            q: The query.
        """
        return await _SERVICES[address].search(q)

    return make_server("search", tools=[read_only_tool(google_search, is_titled=True)])


def servers(services: SlowServices, *, may_guess: bool) -> dict[str, Any]:
    """The config of the search server and of the two servers that read pages."""
    pages = {"readers": ["jina"], "jina_api_key": "any", "jina_base_url": services.address}
    extracting = {"summary_llm_base_url": services.address, "summary_llm_model_name": "any"}
    allowed = {"speculative": "allow"} if may_guess else {}
    tools = ("convert_to_markdown", "scrape_and_extract_info")
    rules = {"policy": dict.fromkeys(tools, allowed)}
    return {
        "search": {
            "builtin": "benchmarks.overlap.services:create_search",
            "options": {"address": services.address},
            "share": "hub",
        },
        "reader": {"builtin": "reader", "options": pages, "share": "hub", "tools": rules},
        "extract": {
            "builtin": "jina_scrape_llm_summary",
            "options": pages | extracting,
            "share": "hub",
            "tools": rules,
        },
    }
