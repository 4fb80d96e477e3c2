"""What the tests of this folder share: settings with short times, and patience."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from pydantic import SecretStr

from toolhub.config import E2BSettings, SandboxProfile, SandboxSettings

# Nothing here takes longer than a second or two; running into this is a failure, never slowness.
PATIENCE_S = 60.0


def settings(*, api_key: str | None = None, **e2b: Any) -> SandboxSettings:
    times: dict[str, Any] = {"lease_s": 60, "creates_per_second": 1000, "request_timeout_s": 5}
    key = SecretStr(api_key) if api_key else None
    return SandboxSettings(backend="e2b", e2b=E2BSettings(api_key=key, **{**times, **e2b}))


def profile(**fields: Any) -> SandboxProfile:
    return SandboxProfile(**fields)


@contextmanager
def patience() -> Iterator[None]:
    with anyio.fail_after(PATIENCE_S):
        yield
