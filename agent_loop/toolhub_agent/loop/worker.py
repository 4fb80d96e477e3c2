"""One agent at work: turn after turn until it has finished, or may not go on; then its last word."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import anyio

from toolhub_agent.errors import AnswerUnreadable, ContextTooLong, LlmError, LlmRefused
from toolhub_agent.loop.answer import boxed_answer
from toolhub_agent.loop.conversation import Conversation, Turn
from toolhub_agent.loop.task import StopReason
from toolhub_agent.loop.watch import LoopWatch
from toolhub_agent.model import Usage, added

# Turns that were taken back do not count, but there is an end to them: MiroFlow's number.
_EXTRA_ATTEMPTS = 200
# In a row. Each has tried again for as long as `llm.total_timeout_s` allows.
_FAILURES = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """How far an agent got. answers: what it put into boxes on the way. error: why it stopped, if that was a fault."""

    stopped: StopReason
    turns: int
    tool_calls: int
    answers: tuple[str, ...] = ()
    error: str | None = None


class Worker:
    """Drives one conversation. Make a new one for a fresh start."""

    def __init__(
        self,
        conversation: Conversation,
        watch: LoopWatch,
        *,
        max_turns: int,
        final_request: str,
        pause: float,
    ) -> None:
        """final_request: what will be asked at the end, for which there must be room. pause: after a failure."""
        self.conversation = conversation
        self._watch = watch
        self._max_turns = max_turns
        self._final_request = final_request
        self._pause = pause
        self._answers: list[str] = []
        self._tool_calls = 0
        self._failures = 0
        self._error: str | None = None

    @property
    def usage(self) -> Usage:
        total = Usage()
        for usage in self.conversation.usage:
            total = added(total, usage)
        return total

    async def work(self) -> Work:
        """Take turns until the model has finished or must stop. Raises nothing but cancellation."""
        stopped = await self._take_turns()
        turns = self.conversation.history.turns
        return Work(stopped, turns, self._tool_calls, tuple(self._answers), self._error)

    async def _take_turns(self) -> StopReason:
        for _ in range(self._max_turns + _EXTRA_ATTEMPTS):
            if self.conversation.history.turns >= self._max_turns:
                return "max_turns"
            stopped = await self._take_turn()
            if stopped is not None:
                return stopped
        return "no_progress"

    async def _take_turn(self) -> StopReason | None:
        try:
            turn = await self.conversation.take_turn()
        except ContextTooLong as exc:
            self._error = str(exc)
            self.conversation.history.pop_turn()  # makes room for the request for an answer
            return "context"
        except (LlmError, AnswerUnreadable) as exc:
            return await self._note_failure(exc)
        self._failures, self._error = 0, None
        await self._watch.answered(self.conversation.history.turns, turn.completion, turn.taken_back)
        return self._judge(turn)

    def _judge(self, turn: Turn) -> StopReason | None:
        if turn.completion is not None and (answer := boxed_answer(turn.completion.text)) is not None:
            self._answers.append(answer)
        if turn.taken_back is not None:
            logger.info("%s: turn taken back: %s", self.conversation.session, turn.taken_back)
            return None
        self._tool_calls += len(turn.outcomes)
        if turn.is_last:
            return "answered"
        if not self.conversation.fits(self._final_request):
            self.conversation.history.pop_turn()
            return "context"
        return None

    async def _note_failure(self, exc: Exception) -> StopReason | None:
        self._failures += 1
        self._error = str(exc)
        logger.warning("%s: no answer from the model: %s", self.conversation.session, exc)
        if isinstance(exc, LlmRefused) or self._failures >= _FAILURES:
            return "llm_failed"
        await anyio.sleep(self._pause)
        return None

    async def last_word(self, *, attempts: int, boxed: bool) -> str:
        """Ask for the final text, several times if its box is missing; "" if the model cannot be asked."""
        text = ""
        for _ in range(attempts):
            try:
                completion = await self.conversation.answer(self._final_request)
            except (LlmError, AnswerUnreadable) as exc:
                self._error = str(exc)
                logger.warning("%s: no final answer: %s", self.conversation.session, exc)
                continue
            text = completion.text
            await self._watch.answered(self.conversation.history.turns, completion, None)
            if not boxed or boxed_answer(text) is not None:
                break
            self.conversation.history.pop_turn()
            self.conversation.history.pop_results()
        return text
