"""What the tests of the benchmarks share."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.result import Column, Outcome, Table, Target

Json = dict[str, Any]


@pytest.fixture
def result() -> Json:
    """A result as it stands in a file, with one table and one target."""
    table = Table("Speed", [Column("way", "way"), Column("ms", "p50 ms", 1)], [{"way": "ours", "ms": 12.34}])
    outcome = Outcome([table], [Target("ours ÷ theirs", 1.5, 2.0, "×")], ["A note."])
    return {
        "question": "overhead",
        "asks": "What does one call cost?",
        "date": "2026-01-02T03:04:05+00:00",
        "command": "toolhub bench overhead",
        "quick": False,
        "git": {"revision": "0123456789abcdef", "dirty": False},
        "machine": {
            "cores": 2,
            "cpu": "a processor",
            "memory_bytes": 2**33,
            "kernel": "Linux 6",
            "python": "3.11.7",
            "packages": {"mcp": "2.3.0"},
        },
        "noise": {
            "load_before": [0.1],
            "load_after": [0.2],
            "others_cpu_percent": 1.0,
            "noisy": False,
            "wall_s": 2,
        },
        **outcome.to_json(),
    }
