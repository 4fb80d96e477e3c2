"""What servers' errors mean."""

from __future__ import annotations

import pytest
from toolhub_agent.llm.errors import (
    LONGEST_TEXT,
    FailureKind,
    error_message,
    failure_from_status,
    is_context_overflow,
    sanitize,
)


@pytest.mark.parametrize(
    "text",
    [
        # vLLM
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the messages, "
        "100 in the completion). Please reduce the length of the messages or completion.",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "Input length (5000) exceeds model's maximum context length (4096).",
        # SGLang
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens).",
        # OpenAI's code, llama.cpp
        "context_length_exceeded",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_every_engines_words_for_a_prompt_that_does_not_fit(text):
    assert is_context_overflow(text)


@pytest.mark.parametrize("text", ["max_tokens must be at least 1, got 0", "The model `x` does not exist.", "context"])
def test_other_refusals_are_not_about_length(text):
    assert not is_context_overflow(text)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "bad parameter", FailureKind.REFUSED),
        (401, "wrong key", FailureKind.REFUSED),
        (307, "elsewhere", FailureKind.REFUSED),
        (400, "maximum context length", FailureKind.TOO_LONG),
        (413, "prompt is too long", FailureKind.TOO_LONG),
        (408, "", FailureKind.RETRYABLE),
        (429, "", FailureKind.RETRYABLE),
        (500, "the maximum context length of the cache crashed", FailureKind.RETRYABLE),
        (None, "an error without a number", FailureKind.RETRYABLE),
    ],
)
def test_a_status_and_its_text_decide(status, text, kind):
    assert failure_from_status(status, text).kind is kind


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no", "code": 400}}, "no"),
        ({"object": "error", "message": "no", "code": 400}, "no"),
        ({"detail": "no"}, "no"),
        ("no", "no"),
        (None, ""),
        ({"error": "no"}, "no"),
    ],
)
def test_every_shape_of_an_error_body_is_read(body, message):
    assert error_message(body)[0] == message


def test_a_servers_text_is_shown_bounded_on_one_line_and_without_secrets():
    text = sanitize("Incorrect key: sk-very-secret\nAND\x00 " + "x" * 100_000, ("sk-very-secret",))
    assert text.startswith("Incorrect key: *** AND") and "\n" not in text
    assert len(text) == LONGEST_TEXT + 3
