"""The proxy runs on both of anyio's event loops, and on the one that the hub uses in production."""

from __future__ import annotations

import pytest


@pytest.fixture(
    params=[("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["asyncio", "uvloop", "trio"]
)
def anyio_backend(request):
    return request.param
