"""What a client counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WebStatistics:
    """requests: calls of `Web.request`. exchanges: messages sent, with redirects and retries. refused: by the guard.

    reused_share: of the exchanges that had a connection, those that needed no new one. received_bytes: bodies as they
    came.
    """

    requests: int = 0
    in_flight: int = 0
    failures: int = 0
    exchanges: int = 0
    redirects: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    cut: int = 0
    received_bytes: int = 0
    connections_opened: int = 0
    connections_open: int = 0
    reused_share: float = 0.0
    hosts: int = 0
