"""A streamed answer: as many attempts as it takes to the first piece, one after that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from toolhub.config.llm import LlmSettings
from toolhub_agent.errors import AnswerUnreadable, LlmUnavailable
from toolhub_agent.llm.attempt import Attempt, Chunks
from toolhub_agent.llm.failures import AttemptFailed, Verdict
from toolhub_agent.llm.fleet import Fleet
from toolhub_agent.llm.retry import pause
from toolhub_agent.model import Completion, Delta


class LlmStream:
    """Iterate over it once; `completion` is there when the iteration has ended by itself.

    Raises, from the iteration: LlmUnavailable, LlmRefused, ContextTooLong before the first piece; AnswerUnreadable
    for an answer that broke off after it, repeats itself or ended with something else than stop, length or tool_calls.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: LlmSettings,
        *,
        session: str,
        send: Callable[[str], Awaitable[Chunks]],
        done: Callable[[Completion, Attempt], None],
    ) -> None:
        """send: sends the request to an endpoint. done: told of the finished answer."""
        self.attempts = 0
        self._fleet = fleet
        self._settings = settings
        self._session = session
        self._send = send
        self._done = done
        self._started_at = anyio.current_time()
        self._deadline = self._started_at + settings.total_timeout_s
        self._attempt: Attempt | None = None
        self._completion: Completion | None = None
        self._closed = False
        self._handed_out = False

    def __repr__(self) -> str:
        state = "finished" if self._completion else "closed" if self._closed else "open"
        return f"<LlmStream {state}, {self.attempts} attempts, {self._attempt!r}>"

    @property
    def completion(self) -> Completion:
        if self._completion is None:
            raise RuntimeError("the answer has not ended; iterate over the stream first")
        return self._completion

    def __aiter__(self) -> LlmStream:
        return self

    async def __anext__(self) -> Delta:
        while not self._closed:
            try:
                attempt = self._attempt or await self._start()
                delta = await attempt.next()
            except AttemptFailed as failure:
                await self._recover(failure)
            except BaseException:
                await self.aclose()
                raise
            else:
                if delta is not None:
                    return self._hand_out(attempt, delta)
                await self._finish(attempt)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop generating, give the slot back. Nothing comes after it."""
        self._closed = True
        await self._drop()

    async def _start(self) -> Attempt:
        endpoint = self._fleet.endpoints.choose(self._session)
        self.attempts += 1
        try:
            slot = await self._fleet.slots.acquire(endpoint, deadline=self._deadline)
        except LlmUnavailable as exc:
            raise self._unavailable(endpoint, str(exc)) from None
        # No await here: a cancellation would lose the slot.
        self._attempt = Attempt(
            slot,
            lambda: self._send(endpoint),
            timeout=self._settings.attempt_timeout_s,
            deadline=self._deadline,
        )
        return self._attempt

    def _hand_out(self, attempt: Attempt, delta: Delta) -> Delta:
        if not self._handed_out:
            self._handed_out = True
            self._fleet.endpoints.worked(attempt.endpoint)
        return delta

    async def _finish(self, attempt: Attempt) -> None:
        ended_at, reader = anyio.current_time(), attempt.reader
        self._fleet.endpoints.worked(attempt.endpoint)
        await self.aclose()
        self._completion = Completion(
            text=reader.text,
            reasoning=reader.reasoning,
            tool_calls=reader.calls(),
            finish_reason=reader.finish_reason or "",
            usage=reader.usage,
            ttft=(attempt.first_at or ended_at) - attempt.sent_at,
            seconds=ended_at - attempt.sent_at,
            waited=attempt.sent_at - self._started_at,
            endpoint=attempt.endpoint,
            attempts=self.attempts,
        )
        self._done(self._completion, attempt)

    async def _recover(self, failure: AttemptFailed) -> None:
        """Get ready for another attempt, or raise what the caller shall know."""
        endpoint = self._attempt.endpoint if self._attempt else ""
        await self._drop()
        if failure.blames:
            self._fleet.endpoints.failed(endpoint, for_s=failure.retry_after)
        wait = self._pause(endpoint, failure)
        if self._handed_out:
            error: Exception = AnswerUnreadable(f"{endpoint}: the answer broke off: {failure}")
        elif failure.verdict is not Verdict.AGAIN:
            error = failure.refusal(endpoint)
        elif self.attempts >= self._settings.attempts:
            error = self._unavailable(endpoint, str(failure), failure.status)
        elif anyio.current_time() + wait >= self._deadline:
            late = f"{failure}; after the pause of {wait:.1f} s before another attempt the time would be up"
            error = self._unavailable(endpoint, late, failure.status)
        else:
            await anyio.sleep(wait)
            return
        self._closed = True
        raise error from failure

    def _pause(self, endpoint: str, failure: AttemptFailed) -> float:
        """None before another endpoint is tried that nobody has anything against."""
        following = self._fleet.endpoints.of(self._session)
        if failure.blames and following != endpoint and self._fleet.endpoints.is_healthy(following):
            return 0.0
        return pause(self.attempts, retry_after=failure.retry_after)

    def _unavailable(self, endpoint: str, cause: str, status: int | None = None) -> LlmUnavailable:
        spent = anyio.current_time() - self._started_at
        return LlmUnavailable(
            f"no answer after {self.attempts} attempts in {spent:.1f} s, the last at {endpoint}: {cause}",
            endpoint=endpoint,
            status=status,
        )

    async def _drop(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            await attempt.aclose()
