"""Changes to the MCP SDK that a hub needs, with their reasons. Applied when a hub starts, not when toolhub is imported.

Both concern private names of `mcp` 2.3 and act on the whole process.
"""

from __future__ import annotations

import functools

import mcp.client.sse
import mcp.shared.jsonrpc_dispatcher

# A server that does not read must not keep the caller of a cancelled call beyond its deadline for longer than this.
CANCEL_NOTIFY_TIMEOUT_S = 1.0


@functools.cache
def adapt_sdk() -> None:
    """Apply the changes, once per process."""
    # The SDK waits five seconds, shielded from cancellation, for the notice of a cancelled call to be written.
    mcp.shared.jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT = CANCEL_NOTIFY_TIMEOUT_S
    # The SDK's SSE transport caps one event, that is one answer, at 1 MiB and has no parameter for it. The hub counts
    # the bytes of an answer itself (`limits.max_result_bytes`).
    within_origin = getattr(mcp.client.sse, "sse_within_origin")  # noqa: B009  # not exported, so not known to mypy
    unlimited = functools.partial(within_origin, max_event_size=None)
    setattr(mcp.client.sse, "sse_within_origin", unlimited)  # noqa: B010
