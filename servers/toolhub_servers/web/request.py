"""Requests, and what redirects make of them. Pure rules without sockets."""

from __future__ import annotations

import base64
import json as json_
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import httpx2

from toolhub import __version__
from toolhub_servers.web.errors import Forbidden, Unreachable
from toolhub_servers.web.response import ACCEPT_ENCODING

USER_AGENT = f"toolhub/{__version__}"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Only these headers go to another host after a redirect. Others may be keys and cookies, under any name.
_CROSS_ORIGIN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "user-agent"})
_BODY_HEADERS = frozenset({"content-type", "content-language", "content-encoding"})
# Only the client writes these: they say where the message goes and where it ends.
_SET_BY_CLIENT = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
# RFC 9110 section 5: the characters of a name, and those that no value may contain.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """One message to one host. headers: lower-case names. cookies: those that were set by earlier redirects."""

    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    content: bytes | None = None
    cookies: httpx2.Cookies = field(default_factory=httpx2.Cookies)

    @property
    def host(self) -> str:
        """`example.org` or `example.org:8000`, without user and password."""
        return self.url.netloc.decode("ascii")

    def header_fields(self) -> list[tuple[str, str]]:
        """Return the headers to send."""
        headers = {"host": self.host, "accept": "*/*", "user-agent": USER_AGENT, **self.headers}
        if cookies := self._cookies():
            headers["cookie"] = f"{headers['cookie']}; {cookies}" if "cookie" in headers else cookies
        headers["accept-encoding"] = ACCEPT_ENCODING
        if self.content is not None or self.method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(self.content or b""))
        return list(headers.items())

    def _cookies(self) -> str | None:
        if not self.cookies:
            return None
        carrier = httpx2.Request(self.method, self.url)
        self.cookies.set_cookie_header(carrier)
        return carrier.headers.get("cookie")


def make_request(
    method: str, url: str, headers: Mapping[str, str] | None, json: Any, content: bytes | None
) -> OutgoingRequest:
    """Make a request. Raises Forbidden for a URL that is not of the web, Unreachable for a bad header, ValueError."""
    if json is not None and content is not None:
        raise ValueError("a request has one body: json or content")
    target = parse_url(url)
    given = {
        name.lower(): value.strip() for name, value in (headers or {}).items() if name.lower() not in _SET_BY_CLIENT
    }
    for name, value in given.items():
        if not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise Unreachable(f"the header {name!r} cannot be sent; the request was not sent", is_lasting=True)
    if target.userinfo:
        given.setdefault("authorization", _basic(target.userinfo))
        target = target.copy_with(userinfo=b"")
    if json is not None:
        content = json_.dumps(json, ensure_ascii=False, separators=(",", ":")).encode()
        given.setdefault("content-type", "application/json")
    return OutgoingRequest(method.upper(), target, given, content)


def parse_url(text: str) -> httpx2.URL:
    """Parse a URL. Raises Forbidden, whose text does not repeat the URL, because it may contain a secret."""
    try:
        url = httpx2.URL(text.strip())
    except (httpx2.InvalidURL, ValueError, TypeError) as exc:
        raise Forbidden("that is not an address of the web; one looks like https://example.org/path") from exc
    return _check_web_url(url)


def port_of(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def authority_of(text: str) -> str:
    """Return `host:port` of a URL, as `WebSettings.allow_private` takes it. Raises Forbidden."""
    url = parse_url(text)
    host = url.raw_host.decode()
    return f"[{host}]:{port_of(url)}" if ":" in host else f"{host}:{port_of(url)}"


def _check_web_url(url: httpx2.URL) -> httpx2.URL:
    if url.scheme not in ("http", "https"):
        raise Forbidden(f"only http and https addresses can be reached, not {url.scheme or 'one without a scheme'!r}")
    if not url.host:
        raise Forbidden("that address names no host")
    return url


def _basic(userinfo: bytes) -> str:
    user, _, password = userinfo.decode("ascii").partition(":")
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")


def is_redirect(status: int, headers: list[tuple[bytes, bytes]]) -> bool:
    return status in _REDIRECTS and any(name.lower() == b"location" for name, _ in headers)


def redirected_request(
    request: OutgoingRequest, status: int, headers: list[tuple[bytes, bytes]]
) -> OutgoingRequest | None:
    """Return the request that follows a redirect; None if the answer is not a redirect.

    The caller's headers and a body do not go to another host. Raises Forbidden, or Unreachable if a body would have to
    go to another host.
    """
    if not is_redirect(status, headers):
        return None
    location = next(value for name, value in headers if name.lower() == b"location")
    url = _next_url(request, location.decode("utf-8", "replace"))
    following = replace(request, url=url, cookies=_updated_cookies(request, headers))
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        following = _without_body(following)
    return following if _is_same_origin(request.url, url) else _for_another_origin(request, following)


def _next_url(request: OutgoingRequest, location: str) -> httpx2.URL:
    try:
        url = _check_web_url(request.url.join(location))
    except (httpx2.InvalidURL, ValueError) as exc:
        raise Unreachable(f"{request.host} redirected to an invalid address", sent=True, is_lasting=True) from exc
    url = url.copy_with(userinfo=b"") if url.userinfo else url
    return url.copy_with(fragment=request.url.fragment) if request.url.fragment and not url.fragment else url


def _updated_cookies(request: OutgoingRequest, headers: list[tuple[bytes, bytes]]) -> httpx2.Cookies:
    cookies = httpx2.Cookies(request.cookies)
    carrier = httpx2.Request(request.method, request.url)
    cookies.extract_cookies(httpx2.Response(200, headers=headers, request=carrier))
    return cookies


def _without_body(request: OutgoingRequest) -> OutgoingRequest:
    headers = {name: value for name, value in request.headers.items() if name not in _BODY_HEADERS}
    return replace(request, method="HEAD" if request.method == "HEAD" else "GET", headers=headers, content=None)


def _is_same_origin(old: httpx2.URL, new: httpx2.URL) -> bool:
    is_upgrade = (old.scheme, new.scheme, old.port, new.port) == ("http", "https", None, None)
    return old.host == new.host and (is_upgrade or (old.scheme, old.port) == (new.scheme, new.port))


def _for_another_origin(request: OutgoingRequest, following: OutgoingRequest) -> OutgoingRequest:
    if following.content is not None:
        raise Unreachable(
            f"{request.host} redirected a {request.method} with a body to {following.host}; "
            "it is not sent to another host",
            sent=True,
            is_lasting=True,
        )
    headers = {name: value for name, value in following.headers.items() if name in _CROSS_ORIGIN_HEADERS}
    return replace(following, headers=headers)
