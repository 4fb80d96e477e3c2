"""An MCP server that reads a page and has a model extract what is asked for: MiroFlow's `jina_scrape_llm_summary`.

Tool, parameters, keys and sentences are those that the models know. What differs, on purpose:

- The model gets text, never raw HTML or the bytes of a PDF. Pages that Jina Reader does not deliver are converted here.
- A page that several tasks want is fetched once and kept for a while. A dataset is refused before anything is paid.
- A request that timed out is not tried again. `summary_s` bounds all tries for one answer.
- What a model writes between `<think>` and `</think>` is not in `extracted_info`.
- Content is cut to what the model takes (`summary_context_tokens`); `scrape_stats.all_content_displayed` says so.
- A missing option gives an error object like any other failure, before a page is paid for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mcp.server import MCPServer
from pydantic.json_schema import SkipJsonSchema

from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.model import DatasetRefused, Page, PageRenderer, PageUnreadable
from toolhub_servers.scrape.pages import open_pages, page_prefetch
from toolhub_servers.scrape.readers import NO_BALANCE, NO_CONTENT, NO_CONTENT_FROM_JINA, NO_KEY, NO_URL
from toolhub_servers.scrape.settings import service_settings
from toolhub_servers.scrape.summary import Extractor, SummarySettings
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool
from toolhub_servers.web.client import open_web
from toolhub_servers.web.errors import WebError

# These reasons are whole sentences, to which nothing is added.
_WHOLE = frozenset({NO_KEY, NO_URL, NO_CONTENT_FROM_JINA, NO_BALANCE, NO_CONTENT})
_NAMES = {"jina": "Jina Scrape", "direct": "Python Scrape", "browser": "Browser Scrape"}

OPTIONS = SummarySettings
missing_options = missing_options_of(SummarySettings)


def create_server(
    *, context: BuiltinContext | None = None, renderer: PageRenderer | None = None, **options: Any
) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown or wrong.

    context: what the hub gives the server. renderer: a browser for pages that need one. options: see `SummarySettings`.
    """
    settings = validated(SummarySettings, options)
    server_context = ServerContext(context)

    async def scrape_and_extract_info(
        url: str, info_to_extract: str, custom_headers: dict[str, str] | SkipJsonSchema[None] = None
    ) -> str:
        """Read a web page, PDF, code file or other document and extract the information you ask for with an LLM.

        Args:
            url: The URL to read.
            info_to_extract: What to find in it: usually a question, or a description of the information.
            custom_headers: Additional HTTP headers for the request.

        Returns:
            A JSON object with:
                success: Whether the information was extracted.
                url: The URL that was read.
                extracted_info: The information that was found.
                error: What went wrong, if something did.
                scrape_stats: How much was read: line_count, char_count, last_char_line, all_content_displayed.
                model_used: The model that extracted the information.
                tokens_used: How many tokens it used.
        """
        if settings.missing:
            return _failure(url, settings.missing)
        pages = await open_pages(server_context.resources, settings.pages, renderer)
        try:
            page = await pages.read(url, custom_headers)
        except DatasetRefused as exc:
            return _failure(url, str(exc))
        except (PageUnreadable, WebError) as exc:
            return _failure(url, f"Scraping failed (both Jina and Python): {_reason(exc, settings.readers)}")
        endpoint = service_settings(
            settings.summary_llm_base_url, settings.summary_concurrency, total_s=settings.summary_s
        )
        extractor = Extractor(await open_web(server_context.resources, "summary", endpoint), settings)
        extract = await extractor.extract(page.noted_text, info_to_extract)
        return _json(
            success=not extract.error,
            url=url,
            extracted_info=extract.text,
            error=extract.error,
            scrape_stats=_stats(page, len(extractor.fitting(page.text))),
            model_used=settings.summary_llm_model_name,
            tokens_used=extract.tokens,
        )

    tools = [read_only_tool(scrape_and_extract_info, is_titled=True)]
    prefetches = {"scrape_and_extract_info": page_prefetch(server_context, settings.pages, renderer)}
    return make_server(
        "toolhub-jina-scrape-llm-summary",
        tools=tools,
        prefetches={} if settings.missing else prefetches,
        lifespan=server_context.lifespan,
    )


def _stats(page: Page, shown: int) -> dict[str, Any]:
    return {
        "line_count": page.text.count("\n") + 1,
        "char_count": len(page.text),
        "last_char_line": page.text.count("\n", 0, shown) + 1,
        "all_content_displayed": shown == len(page.text) and not page.is_cut,
    }


def _reason(exc: PageUnreadable | WebError, readers: Sequence[str]) -> str:
    if str(exc) in _WHOLE:
        return str(exc)
    # The browser is skipped if there is no page; the failure is then that of another reader.
    asked = readers if isinstance(exc, PageUnreadable) else [name for name in readers if name != "browser"] or readers
    return f"{_NAMES[asked[-1]]}: Unexpected error occurred: {exc}"


def _failure(url: str, error: str) -> str:
    return _json(success=False, url=url, extracted_info="", error=error, scrape_stats={}, tokens_used=0)


def _json(**result: Any) -> str:
    return json.dumps(result, ensure_ascii=False)


def main() -> None:
    description = (
        "Reads pages and has a model extract what is asked for. SUMMARY_LLM_BASE_URL is the whole URL of the model's "
        "endpoint, which usually ends in /chat/completions."
    )
    run("jina_scrape_llm_summary", description, create_server, SummarySettings)
