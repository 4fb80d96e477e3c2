"""Repeats a call whose server died, if that cannot execute it twice.

A call that was not sent is repeated: the slot starts the server again. A call that may have been executed is repeated
only if its tool is declared read-only or idempotent. When the death lost state, the call always fails.
"""

from __future__ import annotations

from collections.abc import Callable

from toolhub.errors import SessionLost
from toolhub.layers import Handler, Layer
from toolhub.limits.backoff import RetryBudget
from toolhub.model import Call, Result

ATTEMPTS = 3


def retry(budget: RetryBudget, *, on_retry: Callable[[], None]) -> Layer:
    """Repeat lost calls within `budget`; `on_retry` is called for each repetition."""

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            budget.deposit()
            while True:
                call.delivery.attempts += 1
                try:
                    return await inner(call)
                except SessionLost as exc:
                    if not _may_repeat(call, exc) or not budget.withdraw():
                        raise
                    if exc.sent == "no":
                        call.delivery.mark_unsent()
                    on_retry()

        return handle

    return layer


def _may_repeat(call: Call, exc: SessionLost) -> bool:
    if exc.state_lost or call.delivery.attempts >= ATTEMPTS:
        return False
    return exc.sent == "no" or call.policy.is_safe_to_repeat
