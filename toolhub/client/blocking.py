"""One request on a connection of its own, for threads without an event loop."""

from __future__ import annotations

from typing import Any

from toolhub.client.address import CONNECT_S, Address
from toolhub.client.http1 import RECEIVE_BYTES, Http1, ProtocolError, common_headers, decoded, encoded
from toolhub.errors import HubLost


def request(address: Address, method: str, target: str, *, token: str | None, body: Any = None, timeout: float) -> Any:
    """Return the decoded answer. Raises the error that the hub answered, HubUnreachable, HubLost.

    timeout: seconds for each wait on the socket.
    """
    http = Http1()
    parts = []
    with address.connect_blocking(min(timeout, CONNECT_S)) as sock:
        sock.settimeout(timeout)
        try:
            sock.sendall(http.request(method, target, common_headers(address, token), encoded(body)))
            while (part := http.read()) != b"":
                if part is None:
                    http.receive(sock.recv(RECEIVE_BYTES))
                else:
                    parts.append(part)
        except (OSError, ProtocolError) as exc:
            raise HubLost(f"the hub at {address} did not answer {method} {target}: {exc}") from exc
    return decoded(address, http.status, b"".join(parts))
