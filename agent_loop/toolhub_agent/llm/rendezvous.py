"""Rendezvous (highest random weight) hashing: which endpoint a conversation belongs to, without any state.

Every process that knows the same endpoints gives the same order. An endpoint that leaves moves only its own
conversations; one that comes takes only those that it wins (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def ranked(session: str, endpoints: Iterable[str]) -> list[str]:
    """The endpoints in the order in which this conversation prefers them."""
    return sorted(endpoints, key=lambda endpoint: (_weight(session, endpoint), endpoint), reverse=True)


def _weight(session: str, endpoint: str) -> bytes:
    # `hash()` differs between processes.
    return blake2b(f"{endpoint}\0{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
