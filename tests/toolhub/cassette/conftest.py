"""These rules hold on both of anyio's event loops."""

from both_event_loops import anyio_backend

__all__ = ["anyio_backend"]
