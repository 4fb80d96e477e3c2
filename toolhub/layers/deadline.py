"""Bounds everything below it by the call's deadline."""

from __future__ import annotations

import anyio

from toolhub.errors import CallTimeout
from toolhub.layers import Handler
from toolhub.model import Call, Result


def deadline(inner: Handler) -> Handler:
    """Cancel the call at its deadline, which also tells the server, and raise CallTimeout."""

    async def handle(call: Call) -> Result:
        with anyio.CancelScope(deadline=call.deadline):
            return await inner(call)
        sent = call.delivery.sent
        outcome = (
            "it still waited in a queue and was not sent" if sent == "no" else "it may or may not have been executed"
        )
        raise CallTimeout(
            f"{call.server}/{call.tool} did not answer within {call.timeout:g} s; {outcome}",
            timeout=call.timeout,
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            sent=sent,
        )

    return handle
