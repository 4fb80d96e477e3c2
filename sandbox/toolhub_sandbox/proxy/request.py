"""The head of a proxy request: its target, and the bytes that the upstream gets. Pure: bytes in, values out.

Stricter than RFC 9112 wherever two readers could understand the same bytes differently: no bare CR or LF, no folded
lines, no control characters, one way to give a body's length. `Host` is rewritten from the target that is checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolhub_sandbox.proxy.rules import Target, parse_authority

HEAD_END = b"\r\n\r\n"
# Also matches the first bytes of TLS, so that a client that expects TLS is refused at once and not by a timeout.
_FORBIDDEN = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NAME = re.compile(_TOKEN)
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) (HTTP/1\.[01])")
_ABSOLUTE = re.compile(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
# For a tunnel, and for a body in chunks, whose end the upstream finds.
UNBOUNDED = 1 << 62
_DROPPED = frozenset({b"host", b"connection", b"keep-alive", b"upgrade"})

Field = tuple[bytes, bytes]


class BadRequest(ValueError):
    """The bytes are not a request that the proxy serves. The text says why and repeats none of them."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a client.

    head: what the upstream gets first; empty for a tunnel, which starts with an answer. size_bytes: the most that the
    upstream gets, head and body. Later bytes would be another request, maybe for another host.
    """

    target: Target
    head: bytes = b""
    size_bytes: int = UNBOUNDED

    @property
    def is_tunnel(self) -> bool:
        return not self.head


def check_bytes(head: bytes | bytearray) -> None:
    """Raise BadRequest as soon as the received part of a head cannot become a good one."""
    if _FORBIDDEN.search(head):
        raise BadRequest("the request has a control character or a line that does not end with CR LF")


def parse_request(head: bytes) -> Request:
    """Parse a head, with the empty line that ends it. Raises BadRequest."""
    check_bytes(head)
    line, *lines = head.removesuffix(HEAD_END).split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise BadRequest("the first line is not METHOD TARGET HTTP/1.1")
    method, target, version = found.groups()
    fields = [_parse_field(field) for field in lines]
    try:
        if method == b"CONNECT":
            return Request(parse_authority(target.decode("ascii")))
        return _plain(method, target.decode("ascii"), version, fields)
    except BadRequest:
        raise
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc


def _parse_field(line: bytes) -> Field:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name):
        raise BadRequest("a header line is not NAME: VALUE")
    return name, value.strip(b" \t")


def _plain(method: bytes, url: str, version: bytes, fields: list[Field]) -> Request:
    found = _ABSOLUTE.match(url)
    if found is None:
        raise BadRequest("the target is not http://host/...; https goes through CONNECT")
    if found.end() != len(url):
        raise BadRequest("the target has a fragment (#...), which is never sent")
    body_bytes = _body_bytes(fields)
    target = parse_authority(found[1], default_port=80)
    path = found[2] if found[2].startswith("/") else f"/{found[2]}"
    host = str(target).removesuffix(":80")
    sent = [(b"Host", host.encode("ascii")), *_end_to_end(fields), (b"Connection", b"close")]
    lines = [b"%s %s %s" % (method, path.encode("ascii"), version), *(b"%s: %s" % field for field in sent)]
    head = b"\r\n".join(lines) + HEAD_END
    return Request(target, head, len(head) + body_bytes)


def _body_bytes(fields: list[Field]) -> int:
    framing = [(name.lower(), value) for name, value in fields if name.lower() in _FRAMING]
    if len(framing) > 1:
        raise BadRequest("the length of the body is told in more than one way")
    for name, value in framing:
        if name == b"transfer-encoding":
            return UNBOUNDED
        if not _LENGTH.fullmatch(value):
            raise BadRequest("Content-Length is not a number")
        return int(value)
    return 0


def _end_to_end(fields: list[Field]) -> list[Field]:
    """Remove the headers that are meant only for the proxy (RFC 9110, 7.6.1)."""
    named = b",".join(value for name, value in fields if name.lower() == b"connection").lower()
    dropped = (_DROPPED | {option.strip(b" \t") for option in named.split(b",")}) - _FRAMING
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]
