"""What the model reads: JSON texts and the sentences for what went wrong, as MiroFlow's servers have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from toolhub_servers.scrape.texts import is_dataset_url
from toolhub_servers.search.model import Results

EMPTY_QUERY = "Search query 'q' is required and cannot be empty"
NO_SERPER_KEY = "SERPER_API_KEY environment variable not set"
NO_TENCENT_KEYS = "TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY environment variable not set"


def written(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def failure(error: str) -> str:
    """The object that says that a search failed. It has no `organic`: nothing is known about what there is."""
    return written({"success": False, "error": error, "results": []})


def cleaned(text: str) -> str:
    """A query as it can be sent: models put line breaks around it, and half characters into it."""
    return text.strip().encode("utf-8", "replace").decode()


def allowed(results: Results, *unwanted: str) -> Results:
    """Without hits that give benchmark answers away. unwanted: parts of further links to leave out."""
    hits = [
        hit for hit in results.hits if not is_dataset_url(hit.link) and not any(part in hit.link for part in unwanted)
    ]
    return replace(results, hits=tuple(hits))
