"""One of MiroThinker's servers, rebuilt on the SDK: it asks the same service about the same thing.

    python server.py NAME URL

URL: of the stand-ins for the services.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import httpx2
from mcp.server import MCPServer

NAME, URL = sys.argv[1:]
server = MCPServer(NAME, log_level="WARNING")


async def _ask(method: str, path: str, body: dict[str, str] | None = None) -> str:
    # A client per request, as the originals have it.
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.request(method, f"{URL}/{path}", json=body)
        return answer.raise_for_status().text


async def google_search(q: str) -> str:
    """Search the web."""
    return await _ask("POST", "search", {"q": q})


async def scrape_and_extract_info(url: str, info_to_extract: str) -> str:
    """Read a page and find something in it."""
    page = await _ask("GET", f"page/{url}")
    return await _ask("POST", "summary", {"content": f"{info_to_extract}\n{page}"})


async def run_python_code(code_block: str) -> str:
    """Run code."""
    raise RuntimeError("a run of this benchmark has no call that runs code")


if __name__ == "__main__":
    tools: dict[str, Callable[..., Awaitable[str]]] = {
        "search_and_scrape_webpage": google_search,
        "jina_scrape_llm_summary": scrape_and_extract_info,
    }
    server.tool(structured_output=False)(tools.get(NAME, run_python_code))
    server.run()
