"""A uid for each live sandbox, where the hub is root: what the kernel counts per uid is then counted per sandbox."""

from __future__ import annotations

import random
from collections import deque

from toolhub_sandbox.errors import SandboxLimit


class Uids:
    """Lends the uids from `first` to `last`, both included, without `reserved`.

    It begins anywhere among them, so that two hubs of one machine seldom lend the same; the one that was given back
    last is lent again last.
    """

    def __init__(self, first: int, last: int, *, reserved: int) -> None:
        self._text = f"{first}-{last}"
        free = [uid for uid in range(first, last + 1) if uid != reserved]
        start = random.randrange(len(free)) if free else 0  # noqa: S311 - no secret
        self._free = deque(free[start:] + free[:start])
        self._lent: set[int] = set()

    @property
    def lent(self) -> frozenset[int]:
        """Those that sandboxes have."""
        return frozenset(self._lent)

    def take(self) -> int:
        """Lend one. Raises SandboxLimit."""
        if not self._free:
            have = len(self._lent)
            raise SandboxLimit(f"{have} sandboxes have all uids of sandbox.uids ({self._text})", limit="uids")
        uid = self._free.popleft()
        self._lent.add(uid)
        return uid

    def give_back(self, uid: int) -> None:
        self._lent.remove(uid)
        self._free.append(uid)
