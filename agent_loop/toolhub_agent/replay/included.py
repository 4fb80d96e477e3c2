"""The recording that ships, and the tools its agent uses: no key, no network.

The lighthouse is invented, the six documents were written for this. The words are a person's, not a model's: they show
what a task looks like, not what a model can do.
"""

from __future__ import annotations

from pathlib import Path

from toolhub.config import Config, parse_config

_FOLDER = Path(__file__).parent / "demo"
LOG = _FOLDER / "trajectory.jsonl"
DOCUMENTS = _FOLDER / "documents"
NOTE = (
    "The model's words were written by hand for this demo, and its token counts, TTFT and seconds are not of any "
    "model: tokens are counted as four bytes each, times are the pace of the demo."
)


def config(workdir: Path) -> Config:
    """Search over the documents, reading them, a sandbox per call, a clock, a plan. workdir: for what they keep."""
    return parse_config(
        {
            "hub": {"state_dir": str(workdir / "state")},
            "agent": {"read_only_tools": ["tool-google-search/google_search"]},
            "servers": {
                "tool-google-search": {
                    "builtin": "toolhub_servers.google_search:create_server",
                    "share": "hub",
                    "options": {
                        "backends": ["local"],
                        "local": {
                            "folder": str(DOCUMENTS),
                            "base_url": "https://archive.example",  # not fetched by anyone: names instead of paths
                            "cache_dir": str(workdir / "index"),
                        },
                    },
                    "tools": {"policy": {"google_search": {"read_only": True}}},
                },
                "files": {
                    "builtin": "toolhub_servers.files:create_server",
                    "share": "hub",
                    "options": {"root": str(DOCUMENTS)},
                },
                "stateless_python": {
                    "builtin": "toolhub_servers.stateless_python:create_server",
                    "stateful": False,
                },
                "task_planner": {
                    "builtin": "toolhub_servers.task_planner:create_server",
                    "options": {"data_dir": str(workdir / "plans")},
                },
                "clock": {"builtin": "toolhub_servers.clock:create_server", "share": "hub"},
            },
        }
    )
