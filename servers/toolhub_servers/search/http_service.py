"""A search service on the web: its address, the pooled client for it, and its failures as SearchFailed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolhub.shared_resources import SharedResources
from toolhub_servers.search.model import SearchFailed, ServiceRefused
from toolhub_servers.serving.overload import overload_in
from toolhub_servers.web.client import Web, open_web
from toolhub_servers.web.errors import BadStatus, WebError, WebTimeout
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

# An answer has some kilobytes; this is what keeps a wrong address from filling the memory.
MAX_BYTES = 4 << 20
# What is shown of an answer that is not understood.
SHOWN = 200


class Service:
    """Get one from `open_service()`. hints: what to do about a status, by status."""

    def __init__(self, name: str, base_url: str, web: Web, hints: Mapping[int, str]) -> None:
        self.name = name
        self.base_url = base_url
        self._web = web
        self._hints = hints

    def __repr__(self) -> str:
        return f"<Service {self.name} at {self.base_url}>"

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object of the answer. Raises SearchFailed.

        A search changes nothing, so it may be sent again.
        """
        try:
            reply = await self._web.request(
                method,
                self.base_url + path,
                headers=headers,
                json=json,
                content=content,
                max_bytes=MAX_BYTES,
                is_safe=True,
            )
        except BadStatus as exc:
            raise self._refusal(exc) from exc
        except WebTimeout as exc:
            raise SearchFailed(f"{self.name} timed out: {exc}") from exc
        except WebError as exc:
            raise SearchFailed(f"{self.name} could not be reached: {exc}") from exc
        try:
            answer = reply.json()
        except ValueError as exc:
            raise self.invalid_answer("is not JSON", reply.body) from exc
        if not isinstance(answer, dict):
            raise self.invalid_answer("is no JSON object", reply.body)
        return answer

    def invalid_answer(self, why: str, body: bytes) -> SearchFailed:
        shown = body[:SHOWN].decode(errors="replace").strip()
        return SearchFailed(f"{self.name} gave an answer that {why}: {shown or 'it is empty'}")

    def _refusal(self, exc: BadStatus) -> SearchFailed:
        hint = self._hints.get(exc.status)
        told = " ".join(exc.text.split())[:SHOWN]
        pause = f"it asks for a pause of {exc.retry_after:.0f} s" if exc.retry_after else None
        notes = "; ".join(filter(None, [hint, pause]))
        message = (
            f"{self.name} answered {exc.status}" + (f": {told}" if told else "") + (f" ({notes})" if notes else "")
        )
        kind = ServiceRefused if exc.status < 500 and exc.status != 429 else SearchFailed
        return kind(message, overload=overload_in(exc))


async def open_service(
    name: str, base_url: str, resources: SharedResources, settings: WebSettings, hints: Mapping[int, str]
) -> Service:
    """Return the service with the hub's client for it. The address comes from the config, so it may be private."""
    allowed = [*settings.allow_private, authority_of(base_url)]
    trusting = settings.model_copy(update={"allow_private": allowed})
    return Service(name, base_url, await open_web(resources, name, trusting), hints)
