"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_hub import stub, write_config
from toolhub_command import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder without a config."""
    return Shell(tmp_path)


@pytest.fixture
def echo(shell: Shell) -> Shell:
    """A folder whose config has the stub server."""
    write_config(shell.folder, name="hub.yaml", servers={"echo": stub()})
    return shell
