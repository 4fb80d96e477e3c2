"""The tool `scrape_website`, which the search servers have beside their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver.tools import Tool

from toolhub_servers._hosted import Lobby
from toolhub_servers._lacks import Lack
from toolhub_servers.scrape import PageSettings, Renderer, open_pages, scrape_website
from toolhub_servers.search.settings import validated
from toolhub_servers.search.tools import search_tool


def website_lacks(pages: Mapping[str, Any] | None) -> list[Lack]:
    """What the tool was not given and does without. pages: see `PageSettings`. Raises ValueError."""
    return validated(PageSettings, pages or {}, "pages").lacks("scrape_website", prefix="pages.")


class Website:
    """pages: see `PageSettings`. Raises ValueError."""

    def __init__(self, lobby: Lobby, pages: Mapping[str, Any] | None, renderer: Renderer | None) -> None:
        self._lobby = lobby
        self._settings = validated(PageSettings, pages or {}, "pages")
        self._renderer = renderer

    def listed(self) -> Tool:
        return search_tool(self.scrape_website, is_titled=False)

    async def scrape_website(self, url: str) -> str:
        """Get the text of a web page. Works for YouTube videos, too, as far as they have text: title, description and
        subtitles, perhaps not complete. Not for search engines.

        Args:
            url: The URL of the page.

        Returns:
            The text of the page.
        """
        pages = await open_pages(self._lobby.resources, self._settings, self._renderer)
        return await scrape_website(pages, url)
