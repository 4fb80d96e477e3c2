"""Which calls are the same: the same server, tool and arguments, within what may be shared.

A server that keeps state answers differently after a call that changed it. Such calls are counted
(`CacheTarget.writes`) and the count is part of the key, so that no answer from before a change is given to a call that came after it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Protocol

from toolhub.config import ServerSpec
from toolhub.model import Call, ToolPolicy

# Longer keys are kept as a digest, so that nobody's huge arguments stay in memory.
_LONGEST_KEY = 160
_DIGEST_BYTES = 20
_SCALARS = frozenset({str, int, float, bool, type(None)})
# Non-ASCII text stands as it is: escaped, one character and its two surrogates would look the same.
_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

Scope = Literal["off", "task", "hub"]


class CacheTarget(Protocol):
    """What these layers need to know of the server that a call goes to."""

    writes: int
    """Calls that ended and may have changed what the server keeps."""

    @property
    def spec(self) -> ServerSpec: ...

    @property
    def key(self) -> str:
        """Equal for servers that are made from the same configuration."""


def coalesce_scope(spec: ServerSpec, policy: ToolPolicy) -> Scope:
    """Whose calls in flight may be one call with this one; who may be given a kept answer may also wait for it."""
    if not policy.is_safe_to_repeat or spec.sharing == "off":
        return "off"
    if policy.read_only and spec.cache is not None and spec.cache.scope == "hub":
        return "hub"
    return spec.sharing


def may_write(call: Call, target: CacheTarget) -> bool:
    """Whether reads of this server may answer differently after the call."""
    return not call.policy.read_only and target.spec.is_stateful


def key_of(call: Call, target: CacheTarget, scope: Scope, *more: object) -> str | None:
    """Return a text of at most 160 characters that is equal for equal calls; None for what equals nothing.

    `1`, `1.0` and `true` differ; the order of keys does not matter. What has no JSON form is never the same. `more`:
    scalars that must be equal too.
    """
    arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
    writes = target.writes if scope == "task" and target.spec.is_stateful else 0
    try:
        text = _encode([target.key, call.tool, arguments, writes, *more])
    except (TypeError, ValueError, RecursionError):
        return None
    if not _is_plain(arguments):
        return None
    if len(text) <= _LONGEST_KEY:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def _is_plain(arguments: dict[str, Any]) -> bool:
    """Whether encoding changed nothing: the encoder also takes keys that are numbers, tuples, and kinds of `str`."""
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
