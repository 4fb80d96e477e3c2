"""What the loop asks of a client of model servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.model import Completion, Delta


class AnswerStream(Protocol):
    """One answer, piece by piece; see `LlmStream` for what is raised."""

    @property
    def completion(self) -> Completion:
        """The whole answer, once the iteration has ended by itself."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...


class ModelAccess(Protocol):
    """`LlmClient` is one; so is a recording of one."""

    @property
    def known_model(self) -> str | None:
        """The model's name, where it is known already."""

    def stream(self, request: LlmRequest) -> AbstractAsyncContextManager[AnswerStream]: ...

    def endpoint_of(self, session: str) -> str: ...

    def forget(self, session: str) -> None: ...
