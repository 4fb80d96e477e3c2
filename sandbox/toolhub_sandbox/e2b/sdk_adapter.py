"""Calls to E2B's SDK, with our deadlines and our errors.

The SDK's own deadlines cannot be relied on: on Python 3.11 the one of a stream is not enforced once it is open
(measured with e2b 2.63), and run_code's has been twice what was asked (issue 1881 of e2b-dev/E2B). Its errors need
a second question: the exception for a sandbox that is gone is a subclass of the one for a timeout.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from toolhub.config import E2BSettings
from toolhub_runtime import install_command
from toolhub_sandbox.errors import SandboxError, SandboxLimit, SandboxLost, SandboxUnavailable

T = TypeVar("T")

# Whether a sandbox runs is one small request. Without an answer by then it counts as running.
IS_RUNNING_S = 5.0

# e2b 2.55, which e2b-code-interpreter 2.11 still allows, has neither streamed uploads nor output that is not retained
# nor keys for repeated requests. Those between are untried.
OLDEST_SDK = (2, 63)

IsRunning = Callable[[], Awaitable[bool]]


class KeyRefused(SandboxUnavailable):
    """The service refused the API key: nothing was done, so nothing needs cleaning up."""


def load_sdk() -> Any:
    """Return the SDK's module. Raises SandboxUnavailable if it is not installed, or too old."""
    try:
        sdk = importlib.import_module("e2b_code_interpreter")
    except ModuleNotFoundError as exc:
        raise SandboxUnavailable(
            f"the backend 'e2b' needs the E2B SDK, which is not installed: {install_command('e2b')}"
        ) from exc
    version = importlib.metadata.version("e2b")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_SDK:
        oldest = ".".join(map(str, OLDEST_SDK))
        raise SandboxUnavailable(
            f"e2b {version} is too old for the backend 'e2b': pip install --upgrade 'e2b>={oldest}'"
        )
    return sdk


class SdkAdapter:
    """Sends calls to the SDK. It knows the API key, to keep it out of errors."""

    def __init__(self, sdk: Any, settings: E2BSettings) -> None:
        self.sdk = sdk
        self.timeout_s = settings.request_timeout_s
        configured = settings.api_key.get_secret_value() if settings.api_key else None
        # The SDK, not we, reads the variable.
        self._key: str | None = sdk.ConnectionConfig(api_key=configured).api_key
        if not self._key:
            raise SandboxUnavailable(
                "the backend 'e2b' needs an API key: set the variable E2B_API_KEY, or sandbox.e2b.api_key in the config"
            )

    def __repr__(self) -> str:
        return f"<SdkAdapter to E2B, {self.timeout_s:g} s a request>"

    @property
    def params(self) -> dict[str, Any]:
        """Arguments of every call to the control plane."""
        return {"api_key": self._key, "request_timeout": self.timeout_s}

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        doing: str,
        timeout: float | None = None,
        is_running: IsRunning | None = None,
        passing: tuple[type[Exception], ...] = (),
        otherwise: type[SandboxError] = SandboxError,
    ) -> T:
        """Return what the SDK gives, by `timeout` (default: a request's).

        passing: errors of the SDK that the caller handles itself.
        Raises SandboxLost if the sandbox is gone (asked with `is_running`), SandboxLimit after 429 and 503,
        SandboxUnavailable if the key is refused, `otherwise` for the rest: the call may or may not have taken effect.
        """
        seconds = self.timeout_s if timeout is None else timeout
        failure: Exception | None = None
        with anyio.move_on_after(seconds):
            try:
                return await send()
            except passing:
                raise
            except Exception as exc:  # the SDK lets errors of five libraries through, even plain Exception
                # Being cancelled surfaces as a connection error now and then (Python 3.11).
                await anyio.lowlevel.checkpoint_if_cancelled()
                failure = exc
        raise await self._meaning(failure, doing, seconds, is_running, otherwise) from self._showable(failure)

    async def _meaning(
        self,
        failure: Exception | None,
        doing: str,
        seconds: float,
        is_running: IsRunning | None,
        otherwise: type[SandboxError],
    ) -> SandboxError:
        text = f"no answer within {seconds:g} s" if failure is None else self.redacted(failure)
        if isinstance(failure, self.sdk.AuthenticationException):
            return KeyRefused(
                f"E2B refused the API key while {doing}; check E2B_API_KEY or sandbox.e2b.api_key: {text}"
            )
        if self._is_refusal(failure):
            return SandboxLimit(f"E2B refused {doing}: {text}", limit="e2b")
        if isinstance(failure, self.sdk.SandboxNotFoundException):
            return SandboxLost(f"the sandbox is gone (found while {doing}): {text}")
        if is_running is not None and await self._is_dead(is_running):
            return SandboxLost(f"the sandbox is gone (found while {doing}): {text}")
        return otherwise(f"E2B failed while {doing}; it may have taken effect: {text}")

    def _is_refusal(self, failure: Exception | None) -> bool:
        if isinstance(failure, (self.sdk.RateLimitException, self.sdk.ServiceBusyException)):
            return True
        # The code interpreter's part of the SDK has no class for these, only a text.
        return isinstance(failure, self.sdk.SandboxException) and str(failure).startswith(("429 ", "503 "))

    async def _is_dead(self, is_running: IsRunning) -> bool:
        with suppress(Exception), anyio.move_on_after(IS_RUNNING_S):
            return not await is_running()
        return False

    def redacted(self, failure: Exception) -> str:
        """Return an error's text without the key, should the service have repeated it."""
        text = str(failure) or type(failure).__name__
        return text.replace(self._key, "***") if self._key else text

    def _showable(self, failure: Exception | None) -> Exception | None:
        """The cause, unless a traceback of it would show the key."""
        cause: BaseException | None = failure
        while cause is not None:
            if self._key and self._key in str(cause):
                return None
            cause = cause.__cause__ or cause.__context__
        return failure
