"""A hub that never starts a program makes no cgroup, which nobody would remove if it were killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolhub.spawn.exec import open_spawner
from toolhub.spawn.journal import open_journal


@pytest.mark.anyio
async def test_a_cgroup_is_made_with_the_first_child_only(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        async with open_spawner(journal):
            assert "cgroup" not in journal.path.read_text()
