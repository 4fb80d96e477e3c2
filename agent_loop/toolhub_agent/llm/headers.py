"""The headers that tell routers and engines which conversation a request belongs to. Unknown headers harm nobody."""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import quote

LONGEST_VALUE = 200
# MiroFlow's; vLLM, its routers and llm-d; SGLang's gateway; Dynamo.
SESSION_HEADERS = ("x-upstream-session-id", "X-Session-ID", "X-SMG-Routing-Key", "X-Dynamo-Session-ID")
# llm-d's session affinity hands this out with an answer and wants it back with the next request.
SESSION_TOKEN = "x-session-token"  # noqa: S105
LONGEST_TOKEN = 4096


def session_headers(session: str, *, final: bool = False) -> dict[str, str]:
    """final: no request of this conversation follows (Dynamo frees what it kept for it)."""
    value = header_value(session)
    headers = dict.fromkeys(SESSION_HEADERS, value)
    return {**headers, "X-Dynamo-Session-Final": "true"} if final else headers


def header_value(text: str) -> str:
    """A name as a header may carry it: no control or foreign characters, not too long, still one per name."""
    safe = quote(text, safe="!#$&'()*+,/:;=?@[]-._~|", errors="backslashreplace")
    if len(safe) <= LONGEST_VALUE:
        return safe
    return f"{safe[: LONGEST_VALUE - 33]}-{blake2b(safe.encode(), digest_size=16).hexdigest()}"


def root_of(endpoint: str) -> str:
    """An engine's address without the API's `/v1`: `/metrics`, `/version`, `/close_session` are there."""
    return endpoint.rstrip("/").removesuffix("/v1")
