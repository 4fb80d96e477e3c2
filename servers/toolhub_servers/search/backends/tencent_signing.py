"""Tencent Cloud's signatures of requests: TC3-HMAC-SHA256 (https://www.tencentcloud.com/document/api/614/42761)."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime

ALGORITHM = "TC3-HMAC-SHA256"
CONTENT_TYPE = "application/json; charset=utf-8"
SIGNED = "content-type;host;x-tc-action"


@dataclass(frozen=True, slots=True)
class Credentials:
    secret_id: str
    secret_key: str = field(repr=False)


def signed_headers(
    keys: Credentials, *, host: str, service: str, action: str, version: str, body: bytes, timestamp: int
) -> dict[str, str]:
    """Return the headers of a POST of `body` to `https://<host>/`.

    timestamp: seconds since 1970; the service accepts the request for 5 minutes.
    """
    names = f"content-type:{CONTENT_TYPE}\nhost:{host}\nx-tc-action:{action.lower()}\n"
    request = "\n".join(["POST", "/", "", names, SIGNED, _digest(body)])
    day = datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d")
    scope = f"{day}/{service}/tc3_request"
    signing = f"TC3{keys.secret_key}".encode()
    for part in (day, service, "tc3_request"):
        signing = _mac(signing, part)
    signature = _mac(signing, "\n".join([ALGORITHM, str(timestamp), scope, _digest(request.encode())])).hex()
    return {
        "Authorization": f"{ALGORITHM} Credential={keys.secret_id}/{scope}, "
        f"SignedHeaders={SIGNED}, Signature={signature}",
        "Content-Type": CONTENT_TYPE,
        "Host": host,
        "X-TC-Action": action,
        "X-TC-Timestamp": str(timestamp),
        "X-TC-Version": version,
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
