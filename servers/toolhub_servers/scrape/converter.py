"""Convert the body of an answer to a page, away from the event loop."""

from __future__ import annotations

from toolhub_servers.scrape.conversion import Converted, NoText, convert
from toolhub_servers.scrape.model import Page, PageUnreadable
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.web.errors import ResourceLimitExceeded
from toolhub_servers.web.workers import offload


class Converter:
    """Converts bodies within `convert_s` and `convert_bytes` of the settings."""

    def __init__(self, settings: PageSettings) -> None:
        self._settings = settings

    async def page(self, body: bytes, content_type: str, url: str, *, is_cut: bool = False) -> Page:
        """Return the page. is_cut: `body` is only the beginning. Raises PageUnreadable."""
        cut_short = f"only its first {len(body)} bytes were read" if is_cut else ""
        try:
            done = await offload(
                convert,
                body,
                content_type,
                url,
                self._settings.max_chars,
                returns=Converted,
                raises=(NoText,),
                timeout=self._settings.convert_s,
                memory_bytes=self._settings.convert_bytes,
            )
        except (NoText, ResourceLimitExceeded) as exc:
            raise PageUnreadable(f"{exc}; {cut_short}" if is_cut else str(exc)) from exc
        except RuntimeError as exc:  # a parser failed, perhaps on a page that was made for that
            raise PageUnreadable(f"the page could not be converted: {exc}") from exc
        notes = []
        if is_cut:
            notes.append(f"{cut_short[0].upper()}{cut_short[1:]}; there was more.")
        if done.is_cut:
            notes.append(f"Only the first {len(done.text)} characters are here; there was more.")
        return Page(url, done.title, done.text, done.kind, is_cut or done.is_cut, " ".join(notes))
