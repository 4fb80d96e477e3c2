"""What every test shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: hypothesis gives no test a deadline and no generator one.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Folders whose every test is slow: a Chromium, environments with the wheel in them, code that attacks its sandbox, and
# other people's servers.
SLOW_FOLDERS = frozenset({"browser", "packaging", "hostile", "thirdparty"})


# What a worker and the processes that its tests start use at most.
WORKER_BYTES = 1 << 30


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The workers of `-n auto`: two more than cores, because many tests wait for processes, and no more than fit.

    The quick tests never wait. For them each worker beyond the cores costs only its imports.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if config.getoption("markexpr") == "quick":
        return cores
    return max(1, min(cores + 2, psutil.virtual_memory().total // WORKER_BYTES))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that none of them is still running when all others have ended."""
    home = Path(__file__).parent
    for item in items:
        if not SLOW_FOLDERS.isdisjoint(item.path.relative_to(home).parts):
            item.add_marker(pytest.mark.slow)
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.fixture
def anyio_backend() -> str:
    """Run `@pytest.mark.anyio` tests on asyncio, as the hub does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A hub that is not told where to keep its files must neither read nor change those of whoever runs the tests."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    del os.environ["XDG_STATE_HOME"]
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT, and every program below inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
