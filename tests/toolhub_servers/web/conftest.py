"""The web client runs on both of anyio's event loops, and on the hub's, unless a module asks for virtual time."""

from __future__ import annotations

import pytest


@pytest.fixture(
    params=[("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["asyncio", "uvloop", "trio"]
)
def anyio_backend(request):
    return request.param
