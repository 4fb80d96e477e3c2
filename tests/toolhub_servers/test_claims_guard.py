"""Every tool that reads an address on its own: nothing private is reached, not even by a redirect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from website.site import Site, site

from toolhub import Hub, parse_config

__all__ = ["site"]
pytestmark = pytest.mark.anyio

# Server, tool, the argument that is an address, and what else the tool has to be given.
READERS = pytest.mark.parametrize(
    ("server", "tool", "address", "arguments"),
    [
        ("google_search", "scrape_website", "url", {}),
        ("sogou_search", "scrape_website", "url", {}),
        ("jina_scrape_llm_summary", "scrape_and_extract_info", "url", {"info_to_extract": "the tide"}),
        ("reading", "convert_to_markdown", "uri", {}),
        ("reader", "convert_to_markdown", "uri", {}),
        ("vqa_os", "visual_question_answering", "image_path_or_url", {"question": "what is it?"}),
        ("transcribe", "audio_transcription", "audio_path_or_url", {}),
        ("transcribe", "audio_question_answering", "audio_path_or_url", {"question": "what is said?"}),
        ("transcribe_os", "audio_transcription", "audio_path_or_url", {}),
    ],
)


def options_of(server: str, site: Site, allowed: list[str]) -> dict[str, Any]:
    """Everything the server needs for its tool to go as far as the address."""
    web = {"allow_private": allowed, "retries": 0}
    pages = {"readers": ["direct"], "web": web}
    model = {"base_url": site.chat_url, "model": "m", "api_key": "k", "web": web}
    summary = {"summary_llm_base_url": site.chat_url, "summary_llm_model_name": "m"}
    return {
        "google_search": {"backends": [], "pages": pages},
        "sogou_search": {"backends": [], "pages": pages},
        "jina_scrape_llm_summary": {**pages, **summary},
        "reading": pages,
        "reader": pages,
        "vqa_os": model,
        "transcribe": {name: value for name, value in model.items() if name != "base_url"} | {"base_url": site.url},
        "transcribe_os": {**model, "base_url": f"{site.url}/v1"},
    }[server]


async def told(server: str, tool: str, arguments: dict[str, Any], options: dict[str, Any], folder: Path) -> str:
    entry = {"builtin": server, "options": options}
    with anyio.fail_after(60):
        config = parse_config({"hub": {"state_dir": str(folder)}, "servers": {server: entry}})
        async with Hub(config) as hub, hub.task("t") as task:
            return str((await task.call(server, tool, arguments)).text)


@READERS
async def test_a_private_address_is_refused_by_every_tool_that_reads_one(
    server: str, tool: str, address: str, arguments: dict[str, Any], site: Site, tmp_path: Path
) -> None:
    given = {address: f"{site.url}/article", **arguments}
    text = await told(server, tool, given, options_of(server, site, []), tmp_path)
    assert "public" in text and site.seen == []


@READERS
async def test_a_redirect_to_a_private_address_is_refused_by_every_tool_that_follows_one(
    server: str, tool: str, address: str, arguments: dict[str, Any], site: Site, tmp_path: Path
) -> None:
    given = {address: f"{site.url}/to-loopback", **arguments}
    text = await told(server, tool, given, options_of(server, site, [site.authority]), tmp_path)
    assert "public" in text and [seen.target for seen in site.seen] == ["/to-loopback"]
