"""Layers: each wraps a handler with one policy. `stack()` composes them, outermost first.

The order matters and a test pins it (see docs/decisions/04-layer-order.md): a deadline bounds everything below it, a
retry that waits holds no place in a queue, and only an admitted call takes a session.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from toolhub.model import Call, Result

Handler = Callable[[Call], Coroutine[Any, Any, Result]]
"""Waits for the result of a call. One that only decides is a plain function: it returns what another one returns."""
Layer = Callable[[Handler], Handler]


def stack(*layers: Layer) -> Layer:
    """Compose layers, the first being the outermost."""

    def wrap(inner: Handler) -> Handler:
        for layer in reversed(layers):
            inner = layer(inner)
        return inner

    return wrap
