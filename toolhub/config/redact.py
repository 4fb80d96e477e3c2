"""Remove secrets from texts that people read: messages, `repr`, the stderr lines of a server."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from toolhub.config.interpolate import texts

# Redacting a shorter secret would also remove ordinary words and numbers from messages.
SHORTEST_SECRET = 6

_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD|AUTH|CREDENTIAL", re.IGNORECASE)
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE)


# An option whose name ends so, `NAME=value` as in `docker run -e`, and `Name: value` as in `--header`.
_SECRET_ARGUMENT = re.compile(
    r"(?P<name>-*[\w.-]*(?:key|token|secret|password|authorization))(?:(?P<between>\s*[=:]\s*)(?P<value>.+))?",
    re.IGNORECASE | re.DOTALL,
)


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret replaced by `***`."""
    pattern = _pattern(frozenset(secrets))
    return pattern.sub("***", text) if pattern else text


def redact_json(value: Any, secrets: frozenset[str]) -> Any:
    """Return a JSON value without secrets, in its texts and names."""
    if not secrets:
        return value
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(str(name), secrets): redact_json(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(item, secrets) for item in value]
    return value


def secret_forms(secrets: Iterable[str]) -> frozenset[str]:
    """Return the forms in which a secret occurs: as it is, in JSON, and in JSON in JSON (a tool's result often is)."""
    forms = set(secrets)
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)}
    return frozenset(forms)


@functools.lru_cache  # a log redacts every text with the same secrets
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    # Longest first: a secret may begin with another secret, and all of it must be removed.
    longest_first = sorted(filter(None, secrets), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def long_enough(values: Iterable[str]) -> frozenset[str]:
    """Return the values that are long enough to be redacted."""
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET)


def named_secrets(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Yield values whose names contain KEY, TOKEN, SECRET or the like; for `Bearer x` also `x`."""
    for key, text in texts(mapping):
        if any(_SECRET_NAME.search(str(part)) for part in key):
            yield text
            if scheme := _SCHEME.fullmatch(text):
                yield scheme[1]


def url_secrets(url: str) -> Iterator[str]:
    """Yield the password of a URL, and the values in its query whose names contain KEY, TOKEN or the like."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    for value in filter(None, (parts.password, *named_secrets(dict(parse_qsl(parts.query))))):
        yield value
        yield quote(value)  # as it may stand in the URL


def secret_arguments(args: Sequence[str]) -> Iterator[str]:
    """Yield the values of options such as `--api-key`, `--token`, `--secret` and `--password`."""
    for value in filter(None, (secret for _, secret in _secrets_by_position(args))):
        yield value
        if scheme := _SCHEME.fullmatch(value):
            yield scheme[1]


def redacted_arguments(args: Sequence[str]) -> list[str]:
    """Return the arguments with `***` for every secret that `secret_arguments` finds, of any length."""
    return [before + "***" if secret is not None else before for before, secret in _secrets_by_position(args)]


def _secrets_by_position(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield for each argument its public part, and the secret after it in the same argument, if any."""
    is_value = False
    for argument in args:
        match = None if is_value else _SECRET_ARGUMENT.fullmatch(argument)
        if is_value:
            yield "", argument
        elif match and match["value"]:
            yield match["name"] + match["between"], match["value"]
        else:
            yield argument, None
        is_value = match is not None and match["value"] is None and argument.startswith("-")
