"""A fixture for folders whose asynchronous tests run on both of anyio's event loops.

A module that wants virtual time has an `anyio_backend` of its own.
"""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
