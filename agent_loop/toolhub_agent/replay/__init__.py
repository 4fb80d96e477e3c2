"""An agent's recorded task, played again: the model's words come from a log, the tools are called for real."""

from __future__ import annotations

from pathlib import Path

from toolhub.errors import MissingExtra


def run(as_json: bool, log: Path | None = None, config: Path | None = None) -> None:
    """`toolhub demo --replay`. log: what `toolhub run` wrote, with the tools of config; None: the log that ships."""
    try:
        from toolhub_agent.cli.demo_replay import replay  # a hub and its servers: nothing that an import should cost
    except ImportError as exc:
        if (exc.name or "").startswith("toolhub"):
            raise
        raise MissingExtra("hub,servers,agent", f"demo --replay ({exc.name})") from exc
    replay(as_json, log, config)
