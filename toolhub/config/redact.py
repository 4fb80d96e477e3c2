"""Keeping secrets out of what people read: messages, `repr`, the stderr lines of a server."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolhub.config.interpolate import texts

# Anything shorter would blank out ordinary words and numbers in messages.
SHORTEST_SECRET = 6

_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD|AUTH|CREDENTIAL", re.IGNORECASE)
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced by `***`."""
    pattern = _pattern(frozenset(secrets))
    return pattern.sub("***", text) if pattern else text


@functools.lru_cache  # a log redacts every text with the same secrets
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    # Longest first: a secret may begin with another one, and its tail must go too.
    longest_first = sorted(filter(None, secrets), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def long_enough(values: Iterable[str]) -> frozenset[str]:
    """Those values that can be told from ordinary text."""
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET)


def named_secrets(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Values under names that say what they are; of `Bearer x` also the bare `x`."""
    for key, text in texts(mapping):
        if any(_SECRET_NAME.search(str(part)) for part in key):
            yield text
            if scheme := _SCHEME.fullmatch(text):
                yield scheme[1]
