"""What people use today for code that keeps state: an ipykernel, through jupyter_client."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.common.measure import pss_bytes, rss_bytes, tree

_REPLY_S = 60.0


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("ipykernel", "jupyter_client"))


class Kernel:
    """A running kernel."""

    def __init__(self, client: Any, pid: int) -> None:
        self._client = client
        self.pid = pid

    async def evaluate(self, expression: str) -> None:
        """Run a cell and wait for its reply, which has the value in it.

        This is the least that can be waited for: clients that show output wait for the IOPub channel, too.
        """
        number = self._client.execute(f"_value = {expression}", user_expressions={"value": "_value"})
        reply: Any = {"parent_header": {}}
        while reply["parent_header"].get("msg_id") != number:
            reply = await self._client.get_shell_msg(timeout=_REPLY_S)
        if reply["content"]["user_expressions"]["value"]["status"] != "ok":
            raise RuntimeError(f"the kernel failed: {reply['content']}")

    @property
    def pss_bytes(self) -> int:
        return sum(pss_bytes(process.pid) for process in tree(self.pid))

    @property
    def rss_bytes(self) -> int:
        return sum(rss_bytes(process.pid) for process in tree(self.pid))


@asynccontextmanager
async def open_kernel(expression: str = "1 + 1") -> AsyncIterator[tuple[Kernel, float]]:
    """Start a kernel; gives it, and the milliseconds until it had answered `expression`."""
    manager_class = importlib.import_module("jupyter_client").AsyncKernelManager
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, _private(Path(folder))):
        manager = manager_class()
        began = time.perf_counter()
        await manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        try:
            # Without `wait_for_ready()`, which waits another 0.2 s to be sure that nothing more is said.
            client.start_channels()
            kernel = Kernel(client, manager.provisioner.pid)
            await kernel.evaluate(expression)
            yield kernel, (time.perf_counter() - began) * 1e3
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)


def _private(folder: Path) -> dict[str, str]:
    """Keeps its files, history included, out of the user's."""
    return {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
