"""A hub that opens an address in a task's browser, says so, and lives until its stdin ends."""

from __future__ import annotations

import sys

import anyio
from anyio import to_thread

from toolhub import Hub, parse_config


async def main(host: str, url: str) -> None:
    options = {"allow_private": [host], "action_s": 0.5, "snapshots": "none"}
    server = {"builtin": "browser", "options": options}
    async with Hub(parse_config({"servers": {"browser": server}})) as hub, hub.task("one") as task:
        result = await task.call("browser", "browser_navigate", {"url": url})
        assert "Endless" in str(result.text), result.text
        print("browsing", flush=True)
        await to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
