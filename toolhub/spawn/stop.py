"""How a child process is stopped, in the order of the MCP specification for stdio.

Close its stdin and wait, send SIGTERM and wait, then send SIGKILL to it and to everything that it started.
"""

from __future__ import annotations

import anyio

from toolhub.spawn.exec import Child

# SIGKILL and reaping take milliseconds. Only a process that hangs in the kernel takes longer.
GONE_S = 2.0


async def stop(child: Child, *, grace: float) -> None:
    """End `child` and everything it started.

    grace: seconds to wait after closing stdin, and again after SIGTERM. Never raises, and ends within
    2 x grace + GONE_S even if the caller is cancelled. Another task must run `child.watch()`.
    """
    with anyio.CancelScope(shield=True):
        child.close_stdin()
        if not await _exited_within(child, grace):
            child.terminate()
            if not await _exited_within(child, grace):
                child.kill()
        with anyio.move_on_after(GONE_S):
            await child.gone.wait()


async def _exited_within(child: Child, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await child.exited.wait()
    return child.exited.is_set()
