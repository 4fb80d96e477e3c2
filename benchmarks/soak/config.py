"""The hub's config in a soak: servers of every kind, and limits that keep one machine busy, not full."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common.result import Json

_TOOLS = Path(__file__).with_name("tools.py")
# Deaths are the subject here: a server is not given up for them, so that each one is followed by a start.
_RESTART = {"max_deaths": 1_000_000, "backoff_s": 0.05, "max_backoff_s": 1}
_READ_ONLY = {"policy": {"look": {"read_only": True}}}


def servers(ledger: Path, upstream_port: int) -> dict[str, Json]:
    """Servers by the names that `load` calls them by."""
    stdio = {
        "command": sys.executable,
        "args": ["-S", str(_TOOLS), str(ledger)],
        "tools": _READ_ONLY,
        "restart": _RESTART,
        "stateful": False,
        "idle_s": 60,
    }
    return {
        "exec": {**stdio, "spawn": "exec"},
        "fork": {**stdio, "spawn": "fork"},
        "shared": {**stdio, "share": "hub", "concurrency": 256},
        "builtin": {
            "builtin": "benchmarks.soak.tools:create_server",
            "options": {"ledger": str(ledger)},
            "share": "hub",
        },
        "http": {
            "transport": "http",
            "url": f"http://127.0.0.1:{upstream_port}/mcp",
            "tools": _READ_ONLY,
            "restart": _RESTART,
            "stateful": False,
        },
        "python": {"builtin": "python", "options": {"profile": "bare"}},
    }


SECTIONS: dict[str, Json] = {
    # A client that vanishes is noticed by its lease.
    "limits": {"concurrency": 512, "task_lease_s": 120, "max_tasks": 2000},
    "sandbox": {"profiles": {"bare": {"pool": 4, "memory_bytes": 256 << 20}}},
}
