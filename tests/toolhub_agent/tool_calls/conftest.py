"""Every asynchronous test here runs on both of anyio's event loops, unless its module says otherwise."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
