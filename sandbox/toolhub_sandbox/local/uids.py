"""Which uid a sandbox runs as.

Where the hub is root, each live sandbox gets a uid of its own: the kernel then counts for each sandbox what it counts
for each uid. Otherwise all sandboxes share one.
"""

from __future__ import annotations

import os
import pwd
import random
from collections import deque

from toolhub.config import SandboxSettings
from toolhub_sandbox.errors import SandboxLimit, SandboxUnavailable

# For a hub that runs as root and names no `user`: an id that distributions leave unused (systemd's "Users, Groups,
# UIDs and GIDs": 60578-61183) and that fits the 65,536 ids of a container.
UNUSED_UID = 60987


class UidPool:
    """Lends the uids from `first` to `last`, both included, without `reserved`.

    It begins at a random one, so that two hubs on one machine seldom lend the same. A uid that comes back goes to the
    end of the queue.
    """

    def __init__(self, first: int, last: int, *, reserved: int) -> None:
        self._text = f"{first}-{last}"
        free = [uid for uid in range(first, last + 1) if uid != reserved]
        start = random.randrange(len(free)) if free else 0  # noqa: S311 - no secret
        self._free = deque(free[start:] + free[:start])
        self._lent: set[int] = set()

    @property
    def lent(self) -> frozenset[int]:
        """The uids that sandboxes have now."""
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


def uid_pool(settings: SandboxSettings) -> UidPool | None:
    """Return the uids that this hub can lend to sandboxes; None unless it is root and `sandbox.user` is not set."""
    if os.geteuid() != 0 or settings.user is not None:
        return None
    return UidPool(*settings.uid_range, reserved=UNUSED_UID)


def account(user: str | None) -> tuple[int, int]:
    """Return uid and gid of sandboxes that share one: the hub's own unless it is root. Raises SandboxUnavailable."""
    if os.geteuid() != 0:
        return os.getuid(), os.getgid()
    if user is None:
        return UNUSED_UID, UNUSED_UID
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit() and int(user) != 0:
            return int(user), int(user)
        raise SandboxUnavailable(f"sandbox.user: there is no account {user!r}") from None
    if entry.pw_uid == 0:
        raise SandboxUnavailable("sandbox.user: sandboxes must not run as root")
    return entry.pw_uid, entry.pw_gid
