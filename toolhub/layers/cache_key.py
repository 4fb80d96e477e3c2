"""The key under which equal calls share an answer: server, tool and arguments.

A stateful server answers differently after a call that changed it. Such calls are counted (`CacheTarget.writes`), and
the count is part of the key, so that no call gets an answer from before a change.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Protocol

from toolhub.config import ServerSpec
from toolhub.model import Call, ToolPolicy

# Longer keys are replaced by a digest, so that huge arguments do not stay in memory.
_LONGEST_KEY = 160
_DIGEST_BYTES = 20
_SCALARS = frozenset({str, int, float, bool, type(None)})
# Non-ASCII text is not escaped: one character and its two surrogates would have the same escapes.
_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

Scope = Literal["off", "task", "hub"]


class CacheTarget(Protocol):
    """What the cache and coalesce layers need of the server that a call goes to."""

    writes: int
    """Calls that ended and may have changed the server's state."""

    @property
    def spec(self) -> ServerSpec: ...

    @property
    def key(self) -> str:
        """Equal for servers that are made from the same config."""


def coalesce_scope(spec: ServerSpec, policy: ToolPolicy) -> Scope:
    """Return which equal calls in flight this call may join: none, those of its task, or those of all tasks.

    Where a cache is shared by the hub, calls in flight are too.
    """
    if not policy.is_safe_to_repeat or spec.sharing == "off":
        return "off"
    if policy.read_only and spec.cache is not None and spec.cache.scope == "hub":
        return "hub"
    return spec.sharing


def may_write(call: Call, target: CacheTarget) -> bool:
    """Whether the call may change what the server answers to later reads."""
    return not call.policy.read_only and target.spec.is_stateful


def key_of(call: Call, target: CacheTarget, scope: Scope, *more: object) -> str | None:
    """Return a text of at most 160 characters that is equal for equal calls; None where arguments have no JSON form.

    `1`, `1.0` and `true` differ; the order of keys does not matter. more: scalars that must be equal too.
    """
    arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
    writes = target.writes if scope == "task" and target.spec.is_stateful else 0
    try:
        era = "handshake" if call.profile is None else call.profile.era  # whose results differ
        text = _encode([target.key, call.tool, arguments, writes, era, *more])
    except (TypeError, ValueError, RecursionError):
        return None
    if not _is_plain(arguments):
        return None
    if len(text) <= _LONGEST_KEY:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def _is_plain(arguments: dict[str, Any]) -> bool:
    """Whether the arguments are plain JSON values.

    The encoder also accepts number keys, tuples and `str` subclasses.
    """
    pending: list[Any] = [arguments]
    while pending:
        node = pending.pop()
        if type(node) is dict:
            for key in node:
                if type(key) is not str:
                    return False
            node = node.values()
        elif type(node) is not list:
            return False
        pending.extend([value for value in node if type(value) not in _SCALARS])
    return True
