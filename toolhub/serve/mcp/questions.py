"""Questions of older servers to clients of revision 2026-07-28.

An older server asks in the middle of a request and waits. A client of the new revision is not asked: it gets a result
that says what is needed, and sends its request again with the answers. So the server's request goes on in a task of its
own while the client has its interim result, and the second request picks it up by the state that the result carried.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
from mcp_types.methods import INPUT_REQUIRED_METHODS

from toolhub.channel.base import Refused
from toolhub.channel.jsonrpc.futures import Future, future_factory
from toolhub.model import Json
from toolhub.serve.mcp.client import INVALID_PARAMS, INVALID_REQUEST, ClientRequest

Relay = Callable[[ClientRequest], Awaitable[Json]]

_STATE_PREFIX = "toolhub-question:"
_CAPABILITY = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
# Requests that wait for their client. Each holds a place among the calls of its task, until its deadline.
_MOST_WAITING = 1000


class PendingQuestions:
    """The requests of a gateway that wait for answers. tasks: in which they go on."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._waiting: dict[str, _Exchange] = {}

    def may_arise(self, request: ClientRequest) -> bool:
        """Whether the request could be interrupted, or continues one that was."""
        if request.era == "handshake" or request.method not in INPUT_REQUIRED_METHODS:
            return False
        return bool(request.capabilities) or _state_of(request) is not None

    async def answer(self, request: ClientRequest, relay: Relay) -> Json:
        """Return the result of the request, or what its server needs for it."""
        state = _state_of(request)
        if state is None:
            exchange = _Exchange(request)
            self._tasks.start_soon(exchange.run, relay, request)
        elif (waiting := self._waiting.pop(state, None)) is not None:
            exchange = waiting
            exchange.resume(request)
        else:
            raise Refused(INVALID_PARAMS, "requestState is not known: its request was answered already, or is over")
        result = await exchange.wait_round()
        if "inputRequests" in result and exchange.is_waiting:
            for over in [key for key, one in self._waiting.items() if not one.is_waiting]:
                del self._waiting[over]
            if len(self._waiting) >= _MOST_WAITING:
                exchange.scope.cancel()
                raise Refused(INVALID_REQUEST, f"{_MOST_WAITING} requests wait for answers of their clients already")
            result["requestState"] = state = _STATE_PREFIX + secrets.token_hex(16)
            self._waiting[state] = exchange
        return result


class _Exchange:
    """One request to an older server, over all rounds with its client. The `Output` of the server's notices."""

    def __init__(self, request: ClientRequest) -> None:
        self.scope = anyio.CancelScope()
        self._request = request
        self._numbers = itertools.count(1)
        self._questions: dict[str, tuple[Json, Future[Any]]] = {}
        self._round: Future[Json | Exception] = future_factory()()

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for an answer."""
        return bool(self._questions)

    async def run(self, relay: Relay, request: ClientRequest) -> None:
        outcome: Json | Exception = Refused(INVALID_REQUEST, "the request was cancelled")
        with self.scope:
            try:
                outcome = await relay(replace(request, output=self, ask=self.ask))
            except Exception as exc:
                outcome = exc
        self._questions.clear()
        self._end_round(outcome)

    async def ask(self, method: str, params: Json | None) -> Json:
        """Ask the client, in the interim result of its request."""
        if _CAPABILITY.get(method) not in self._request.capabilities:
            raise Refused(INVALID_REQUEST, f"the client does not support {method}")
        key, answer = f"question-{next(self._numbers)}", future_factory()()
        self._questions[key] = ({"method": method, "params": params or {}}, answer)
        self._end_round(self._needed())
        try:
            result: Json = await answer
        finally:
            self._questions.pop(key, None)
        return result

    def resume(self, request: ClientRequest) -> None:
        """Take the answers of the client's next request."""
        self._request = request
        self._round = future_factory()()
        given = (request.params or {}).get("inputResponses")
        for key, value in (given if isinstance(given, dict) else {}).items():
            if key in self._questions and isinstance(value, dict):
                self._questions.pop(key)[1].set_result(value)
        if self._questions:
            self._end_round(self._needed())

    async def wait_round(self) -> Json:
        """Return what the client gets now. A client that disconnects cancels the request."""
        try:
            outcome = await self._round
        except anyio.get_cancelled_exc_class():
            self.scope.cancel()
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _needed(self) -> Json:
        questions = {key: question for key, (question, _) in self._questions.items()}
        return {"resultType": "input_required", "inputRequests": questions}

    def _end_round(self, outcome: Json | Exception) -> None:
        if not self._round.done():
            self._round.set_result(outcome)

    def send(self, message: Json) -> None:
        self._request.output.send(message)

    def close_early(self) -> None:
        """A client of the new revision does not resume streams."""


def _state_of(request: ClientRequest) -> str | None:
    state = (request.params or {}).get("requestState")
    return state if isinstance(state, str) and state.startswith(_STATE_PREFIX) else None
