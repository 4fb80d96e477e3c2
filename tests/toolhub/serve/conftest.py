"""Fixtures of the tests against a served hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from served_hub import ServedHub, Task, open_task, served, stub, write_config


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file into which the module's echo servers write what was asked of them and what was cancelled."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    path.touch()
    return path


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, ledger: Path) -> Iterator[ServedHub]:
    """One hub for the module, on a TCP port and a unix socket, with one stub server."""
    folder = tmp_path_factory.mktemp("hub")
    slow = stub(env={"LEDGER": str(ledger), "LEDGER_DELAY": "30"})
    config = write_config(folder, servers={"echo": slow})
    with served(config, "--uds", str(folder / "hub.sock")) as running:
        yield running


@pytest.fixture
def client(hub: ServedHub) -> Iterator[httpx2.Client]:
    with hub.client() as tcp:
        yield tcp


@pytest.fixture
def task(client: httpx2.Client) -> Iterator[Task]:
    with open_task(client) as opened:
        yield opened
