"""HTTP/1.1 to a hub, without I/O: builds the bytes to send and parses the received bytes.

h11 keeps the protocol's state. The async client and the blocking client do the sending and waiting.
"""

from __future__ import annotations

import json
from typing import Any

import h11

from toolhub.client.address import Address
from toolhub.errors import HubClosed
from toolhub.wire import error_from_wire

JSON = b"application/json"
RECEIVE_BYTES = 65_536
ProtocolError = h11.RemoteProtocolError

Headers = list[tuple[bytes, bytes]]


def common_headers(address: Address, token: str | None) -> Headers:
    """Return the headers of every request to this hub."""
    headers = [(b"host", address.authority.encode()), (b"content-type", JSON)]
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    return headers


class Http1:
    """One connection: a request, then `receive()` and `read()` in turn until the body has ended.

    Both raise ProtocolError if the hub breaks the protocol or closes the connection within an answer.
    """

    def __init__(self) -> None:
        self._state = h11.Connection(h11.CLIENT)
        self.status = 0
        """The status of the current answer. It is set when `read()` has returned bytes."""
        self.answer_headers: dict[str, str] = {}
        """The headers of the current answer, with lower-case names."""

    def request(self, method: str, target: str, headers: Headers, payload: bytes) -> bytes:
        """Return the request as one block of bytes, so that it wakes the hub only once."""
        headers = [*headers, (b"content-length", str(len(payload)).encode())]
        head = self._state.send(h11.Request(method=method, target=target, headers=headers))
        body = self._state.send(h11.Data(data=payload)) if payload else b""
        end = self._state.send(h11.EndOfMessage())
        return b"".join(part for part in (head, body, end) if part)

    def receive(self, data: bytes) -> None:
        """Take received bytes; b"" means the end of the connection."""
        if not data and self._state.their_state is h11.SEND_RESPONSE:
            raise ProtocolError("the connection ended without an answer")
        self._state.receive_data(data)

    def read(self) -> bytes | None:
        """Return the next part of the body; b"" at its end; None if it needs more received bytes."""
        while True:
            event = self._state.next_event()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                self.answer_headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.EndOfMessage):
                return b""
            elif event is h11.NEED_DATA:
                return None
            elif not isinstance(event, h11.InformationalResponse):
                raise ProtocolError(f"unexpected {event!r}")

    def make_reusable(self) -> bool:
        """Prepare for another request; return False if the connection cannot be reused."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True


def encoded(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body, separators=(",", ":")).encode()


def decoded(address: Address, status: int, raw: bytes) -> Any:
    """Return an answer's JSON; None if it is empty. Raises the error in the answer."""
    try:
        data: Any = json.loads(raw) if raw else None
        error = data.get("error") if status >= 400 else None
    except (ValueError, AttributeError):
        data, error = None, None
    if isinstance(error, dict):
        raise error_from_wire(error)
    if status >= 400 or (raw and data is None):
        raise HubClosed(
            f"the server at {address} is not a toolhub hub: HTTP {status}, {raw[:80]!r}; correct the address"
        )
    return data
