"""Replays a recorded task: the model's answers come from a log, the tools are called for real."""

from __future__ import annotations

from pathlib import Path

from toolhub.errors import MissingExtra


def run(as_json: bool, log: Path | None = None, config: Path | None = None) -> None:
    """`toolhub demo --replay`. log: a log of `toolhub run`, with the tools of config; None: the bundled log."""
    try:
        from toolhub_agent.cli.demo_replay import replay  # a hub and its servers: nothing that an import should cost
    except ImportError as exc:
        if (exc.name or "").startswith("toolhub"):
            raise
        raise MissingExtra("hub,servers,agent", f"demo --replay ({exc.name})") from exc
    replay(as_json, log, config)
