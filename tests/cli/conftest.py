"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import Shell
from serve.served import stub, write_config


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder without a config."""
    return Shell(tmp_path)


@pytest.fixture
def echo(shell: Shell) -> Shell:
    """A folder whose config has the stub server."""
    write_config(shell.folder, name="toolhub.yaml", servers={"echo": stub()})
    return shell
