"""Collects the pages of the site in a folder for Sphinx.

The site has every page of docs/, and some that stand elsewhere in the repository, where people look for them.
A link to a file that is no page leads to a page that shows the file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

from docsite import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "servers/README.md": "reference/servers.md",
    "agent_loop/README.md": "howto/agent.md",
}
"""Pages outside docs/, and their places in the site."""
NAVIGATION = {
    "Start": ["install", "tutorial", "concepts", "comparison"],
    "How to": [
        "howto/use", "howto/miroflow", "recipes/*", "gateway", "howto/sandboxes", "howto/sweeps", "howto/replay",
        "howto/agent", "howto/kv-hints", "howto/decoding", "howto/overlap", "program_admission", "howto/deploy",
    ],
    "Reference": ["reference/*", "errors"],
    "Project": [
        "benchmarks", "architecture", "decisions/*", "glossary", "miroflow_defects", "security", "contributing",
        "changelog",
    ],
}  # fmt: skip
"""Sphinx complains about a page that is in no list."""
FOLDERS = ("decisions", "recipes")
"""Folders whose README, if there is one, stands in the navigation for all of their pages."""
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(#[^)\s]*)?(?=\))")
MARK = re.compile(r"<!-- generate: (\w+) -->\n(?:.*?<!-- /generate -->\n)?", re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".sh": "sh"}


class SiteFolder:
    """The folder that Sphinx reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shown: set[str] = set()

    def fill(self) -> None:
        """Write every page, picture and setting."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("conf.py"), self.folder)
        static = self.folder / "_static"
        static.mkdir()
        shutil.copy(Path(__file__).with_name("toolhub.css"), static)
        places = {path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
        self.places = {**places, **ELSEWHERE}
        for source, place in self.places.items():
            self._write(place, self._page(source, PurePosixPath(place)))
        self._add_navigation()

    def _page(self, source: str, place: PurePosixPath) -> str:
        """The text of a page with its generated parts and with links that work in the site."""
        text = MARK.sub(lambda mark: reference.PARTS[mark[1]](), (ROOT / source).read_text())
        parts = re.split(r"(^(`{3,})[^\n]*\n.*?^\2$)", text, flags=re.DOTALL | re.MULTILINE)
        # `split` gives text, fence, the fence's backticks, text, ...: links stand in the text alone.
        titles = 0

        def heading(found: re.Match[str]) -> str:
            """A second title would be a second page for Sphinx; it and what follows it move down a level."""
            nonlocal titles
            titles += found[0] == "# "
            return "#" * (titles > 1) + found[0]

        for index in range(0, len(parts), 3):
            text = LINK.sub(lambda link: self._target(link, source, place), parts[index])
            parts[index] = re.sub(r"^#+ ", heading, text, flags=re.MULTILINE)
        return "".join(part for index, part in enumerate(parts) if index % 3 != 2)

    def _target(self, link: re.Match[str], source: str, place: PurePosixPath) -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(source), link[1]))
        anchor = link[2] or ""
        if path in self.places:
            target = self.places[path]
        elif not (ROOT / path).exists():
            return link[0]  # Sphinx complains
        elif path.endswith((".png", ".svg")):
            target = path.removeprefix("docs/")
            (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.folder / target)
        else:
            target = self._show(path)
        return os.path.relpath(target, place.parent) + anchor

    def _show(self, path: str) -> str:
        """Make a page that shows a file, or lists a folder. Return its place."""
        place = f"source/{path}.md"
        if path not in self._shown:
            self._shown.add(path)
            thing = ROOT / path
            title = f"---\norphan: true\nnosearch: true\n---\n# `{path}`\n\n"
            if thing.is_dir():
                files = sorted(each for each in thing.iterdir() if each.suffix in LANGUAGES)
                here = PurePosixPath(place).parent
                text = "".join(
                    f"- [{each.name}]({os.path.relpath(self._show(f'{path}/{each.name}'), here)})\n" for each in files
                )
            else:
                text = f"``````{LANGUAGES.get(thing.suffix, 'text')}\n{thing.read_text()}\n``````\n"
            self._write(place, title + text)
        return place

    def _write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _add_navigation(self) -> None:
        for folder in FOLDERS:
            if f"{folder}/README.md" in self.places.values():
                self._append(f"{folder}/README.md", _toctree("", self._matching(f"{folder}/*", whole=True), folder))
        for caption, patterns in NAVIGATION.items():
            found = [name for pattern in patterns for name in self._matching(pattern)]
            self._append("index.md", _toctree(caption, found))

    def _matching(self, pattern: str, *, whole: bool = False) -> list[str]:
        """The pages that a pattern of the navigation means, without `.md`."""
        names = sorted(name.removesuffix(".md") for name in self.places.values())
        found = [name for name in names if PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/")]
        folder = pattern.partition("/")[0]
        first = f"{folder}/README"
        if whole:
            return [name for name in found if name != first]
        return [first] if folder in FOLDERS and first in found else found

    def _append(self, place: str, text: str) -> None:
        with (self.folder / place).open("a") as page:
            page.write(text)


def _toctree(caption: str, names: list[str], folder: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    entries = [os.path.relpath(name, folder) if folder else name for name in names]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])
