"""Makes a model of random weights say what a test needs: the engine does all its work, a grammar leaves it one text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from toolhub_agent.llm import LlmClient, LlmRequest, LlmStream


class ScriptedLlm:
    """An `LlmClient` whose every request is answered with the next text."""

    def __init__(self, llm: LlmClient, texts: Sequence[str]) -> None:
        self.requests: list[LlmRequest] = []
        self._llm = llm
        self._texts = list(texts)

    def stream(self, request: LlmRequest) -> AbstractAsyncContextManager[LlmStream]:
        body = {**request.body, "structured_outputs": {"choice": [self._texts.pop(0)]}}
        self.requests.append(request)
        return self._llm.stream(dataclasses.replace(request, body=body))

    @property
    def known_model(self) -> str | None:
        return self._llm.known_model

    def forget(self, session: str) -> None:
        self._llm.forget(session)
