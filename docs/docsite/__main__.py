"""Builds the documentation site: `make docs`.

The pages are collected in build/docs/pages, Sphinx makes build/docs/html from them, and every link of the result is
checked. A warning is an error. Nothing is loaded from the network.
"""

from __future__ import annotations

import sys

from sphinx.cmd.build import build_main

from docsite.links import check
from docsite.pages import ROOT, SiteFolder

OUT = ROOT / "build" / "docs"


def main() -> int:
    """Build and check. Return the exit status."""
    pages, html = OUT / "pages", OUT / "html"
    SiteFolder(pages).fill()
    status: int = build_main(
        ["-b", "html", "-W", "--keep-going", "-q", "-E", "-d", str(OUT / "doctrees"), str(pages), str(html)]
    )
    if status:
        return status
    problems, outside = check(html)
    listed = OUT / "external-links.txt"
    listed.write_text("\n".join(sorted(outside)) + "\n")
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    count = len(list(html.rglob("*.html")))
    sys.stdout.write(f"{html.relative_to(ROOT)}/index.html: {count} pages, {len(problems)} broken links; ")
    sys.stdout.write(f"{len(outside)} links to elsewhere, not followed, are in {listed.relative_to(ROOT)}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
