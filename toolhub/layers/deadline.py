"""Bounds everything below it by the call's deadline and by the life of its task."""

from __future__ import annotations

import anyio

from toolhub.errors import CallTimeout, TaskClosed
from toolhub.layers import Handler, Layer
from toolhub.model import Call, Result


def deadline(in_flight: set[anyio.CancelScope]) -> Layer:
    """Cancel the call at its deadline, which also tells the server, and raise CallTimeout.

    in_flight: holds the scopes of the task's calls. Whoever closes the task cancels them; the calls raise TaskClosed.
    """

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            with anyio.CancelScope(deadline=call.deadline) as scope:
                in_flight.add(scope)
                try:
                    return await inner(call)
                finally:
                    in_flight.discard(scope)
            raise _timeout(call) if anyio.current_time() >= call.deadline else closed_during(call)

        return handle

    return layer


def _timeout(call: Call) -> CallTimeout:
    sent = call.delivery.sent
    outcome = "it still waited in a queue and was not sent" if sent == "no" else "it may or may not have been executed"
    return CallTimeout(
        f"{call.server}/{call.tool} did not answer within {call.timeout:g} s; {outcome}",
        timeout=call.timeout,
        call_id=call.id,
        server=call.server,
        tool=call.tool,
        sent=sent,
    )


def closed_during(call: Call) -> TaskClosed:
    """Return the error of a call whose task was closed while it ran."""
    message = f"task {call.task_id!r} was closed during {call.server}/{call.tool}"
    return TaskClosed(message, sent=call.delivery.sent)
