"""A machine that does not let anybody isolate says so, with the way out."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

FORBID = "echo 0 > /proc/sys/user/max_user_namespaces"
CREATE = """
import anyio
from toolhub_sandbox import SandboxUnavailable, Sandboxes
async def main():
    async with Sandboxes() as sandboxes:
        try:
            await sandboxes.for_owner("t").create()
        except SandboxUnavailable as exc:
            print(exc)
anyio.run(main)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="a machine without unshare(1)")
def test_where_namespaces_are_forbidden_the_other_backends_are_named():
    script = f'{FORBID}; exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", script, sys.executable, CREATE], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no sandbox can be started: ")
    assert "choose another sandbox.backend: bwrap, e2b, or subprocess, which does not isolate" in done.stdout
