"""Which headers pass through the door, in either direction. Names are lower-case bytes, as ASGI has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Raw = tuple[bytes, bytes]

# RFC 9110 section 7.6.1, and what is older than it.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"proxy-authenticate", b"proxy-authorization"}
)
# A client's credentials are for the hub; the model servers get the configured ones. The body is read here, so it
# must come as it is.
_NOT_SENT_ON = frozenset(
    {b"host", b"content-length", b"expect", b"accept-encoding", b"authorization", b"x-api-key", b"api-key"}
    | {b"cookie", b"origin", b"referer", b"openai-organization", b"openai-project", b"x-toolhub-task"}
)
# uvicorn writes its own date and server; a redirect or a cookie of a model server is nothing for the hub's clients.
_NOT_SENT_BACK = frozenset({b"content-length", b"date", b"server", b"location", b"set-cookie"})


def to_engine(given: Iterable[Raw], *, configured: Collection[str]) -> list[Raw]:
    """A client's headers as the model server gets them. configured: lower-case names that the config sets itself."""
    given = list(given)
    dropped = _HOP | _NOT_SENT_ON | _named_hops(given) | {name.encode("latin-1") for name in configured}
    return [(name, value) for name, value in given if name not in dropped]


def to_client(given: Iterable[Raw], *, secrets: Collection[str] = ()) -> list[Raw]:
    """A model server's headers as the client gets them; one that holds a secret is left out."""
    given = [(name.lower(), value) for name, value in given]
    dropped = _HOP | _NOT_SENT_BACK | _named_hops(given)
    hidden = [secret.encode() for secret in secrets]
    return [
        (name, value) for name, value in given if name not in dropped and not any(secret in value for secret in hidden)
    ]


def value_of(given: Iterable[Raw], name: bytes) -> str:
    """The first of that name, "" if there is none."""
    return next((value.decode("latin-1").strip() for found, value in given if found == name), "")


def _named_hops(given: Iterable[Raw]) -> set[bytes]:
    """Headers that `Connection` declares to be for this hop only."""
    return {part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")}
