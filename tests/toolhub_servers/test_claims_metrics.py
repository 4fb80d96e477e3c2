"""`GET /metrics` of a served hub shows how often connections and answers were used again."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from served_hub import ServedHub, open_task, served, text_of, write_config
from website.site import Site, site

__all__ = ["site"]

PAGES = ("/article", "/notes.txt", "/data.json", "/listing", "/code.py")


def counted(hub: ServedHub, thing: str) -> dict[str, float]:
    """Every count of what is shared under a name that begins so; there has to be one such thing."""
    with hub.client() as client:
        text = client.get("/metrics").text
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "toolhub_shared" and sample.labels["thing"].startswith(thing)
    ]
    assert len({sample.labels["thing"] for sample in samples}) == 1, text
    return {sample.labels["count"]: sample.value for sample in samples}


def test_pages_of_many_tasks_come_over_one_connection_and_the_metrics_say_so(site: Site, tmp_path: Path) -> None:
    pages = {"readers": ["direct"], "web": {"allow_private": [site.authority]}}
    entry = {"builtin": "google_search", "options": {"backends": [], "pages": pages}}
    config = write_config(tmp_path, servers={"tool-google-search": entry})
    with served(config) as hub, hub.client() as client:
        for path in (*PAGES, *PAGES):  # each by a task of its own, the second time from what is kept
            with open_task(client) as task:
                answer = task.call("scrape_website", "tool-google-search", url=f"{site.url}{path}")
                assert "Error" not in text_of(answer)
        web, kept = counted(hub, "http pages"), counted(hub, "pages ")
    assert [seen.target for seen in site.seen] == list(PAGES)
    assert (web["connections_opened"], web["exchanges"], web["reused_share"]) == (1, 5, 0.8)
    assert (kept["hits"], kept["misses"]) == (5, 5)
