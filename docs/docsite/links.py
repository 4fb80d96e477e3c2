"""Checks the links of a built site: each leads to a file and an anchor, and no page loads anything from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

SITE = "http://site.invalid/"
CSS_URL = re.compile(r"url\(\s*['\"]?(?!data:)([^'\")]+)|@import\s+['\"]([^'\"]+)")


class _Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        target = found.get("href") or found.get("src") or found.get("data")
        if not target or target.startswith("data:"):
            return
        if tag == "a" or (tag == "link" and "stylesheet" not in found.get("rel", "") and "icon" not in found["rel"]):
            self.links.add(target)
        else:
            self.loads.add(target)


def check(site: Path) -> tuple[list[str], set[str]]:
    """Return the problems, and the addresses elsewhere that pages link to."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages = {name: _Page((site / name).read_text()) for name in names}
    problems: list[str] = []
    outside: set[str] = set()
    for name, page in pages.items():
        for link in sorted(page.links | page.loads):
            address = urljoin(SITE + name, link)
            if address.startswith(SITE):
                problems += _broken(site, pages, name, link, address)
            elif link in page.loads:
                problems.append(f"{name}: loads {link} from elsewhere")
            elif not address.startswith("mailto:"):
                outside.add(address)
    for style in sorted(site.rglob("*.css")):
        for found in CSS_URL.findall(style.read_text()):
            if urlsplit("".join(found)).netloc:
                problems.append(f"{style.relative_to(site)}: loads {''.join(found)} from elsewhere")
    return problems, outside


def _broken(site: Path, pages: dict[str, _Page], name: str, link: str, address: str) -> list[str]:
    parts = urlsplit(address)
    target = unquote(parts.path).lstrip("/") or "index.html"
    if not (site / target).is_file():
        return [f"{name}: {link} leads to no file"]
    if target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return [f"{name}: {link} leads to no anchor"]
    return []
