"""One request on a connection of its own, for threads without an event loop."""

from __future__ import annotations

import http.client
import json
from typing import Any

from toolhub.client.address import CONNECT_S, Address
from toolhub.client.failures import HubLost
from toolhub.client.transport import JSON, decoded


def request(address: Address, method: str, target: str, *, token: str | None, body: Any = None, timeout: float) -> Any:
    """Return the decoded answer. Raises what the hub answered, HubUnreachable, HubLost.

    timeout: seconds for each wait on the socket.
    """
    headers = {"Content-Type": JSON} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection = _Connection(address, timeout)
    try:
        payload = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        connection.connect()
        connection.request(method, target, payload, headers)
        response = connection.getresponse()
        return decoded(address, response.status, response.read())
    except (OSError, http.client.HTTPException) as exc:
        raise HubLost(f"the hub at {address} did not answer {method} {target}: {exc}") from exc
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: Address, timeout: float) -> None:
        super().__init__(address.authority, timeout=timeout)
        self._address = address
        self._seconds = timeout

    def connect(self) -> None:
        self.sock = self._address.dial(min(self._seconds, CONNECT_S))
        self.sock.settimeout(self._seconds)
