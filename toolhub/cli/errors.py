"""`toolhub errors`: the entries of docs/errors.md. A wheel has the page beside this module."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from toolhub.cli.shared import console
from toolhub.config.problems import did_you_mean
from toolhub.errors import ConfigError

_PAGES = (Path(__file__).with_name("errors.md"), Path(__file__).parents[2] / "docs" / "errors.md")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ROW = re.compile(r"^\| (.+) \| (.+) \| (.+) \|$")


@functools.cache
def entries() -> dict[str, str]:
    """Return the Markdown of each entry by the name of its class, in the order of the page."""
    page = next(path for path in _PAGES if path.is_file()).read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (\w+)$", page, flags=re.MULTILINE)
    return {name: _LINK.sub(r"\1", text.strip()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def show_errors(name: str | None) -> None:
    """Print one entry, or the first sentence of each. Raises ConfigError if there is none of this name."""
    out = console()
    if name is None:
        table = Table.grid("error", "meaning", padding=(0, 2, 0, 0))
        for error, text in entries().items():
            table.add_row(f"[bold]{error}[/]", escape(re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("\n", " ")))
        out.print(table)
        return
    found = {error.casefold(): error for error in entries()}.get(name.replace("-", "").casefold())
    if found is None:
        near = did_you_mean(name, tuple(entries())) or " `toolhub errors` lists them"
        raise ConfigError(f"no error is named {name!r};{near}")
    out.print(f"[bold]{found}[/]")
    for text, indent in _paragraphs(entries()[found]):
        out.print()
        out.print(Padding(escape(text), (0, 0, 0, indent), expand=False))


def _paragraphs(entry: str) -> Iterator[tuple[str, int]]:
    """Each paragraph with its indent; a message of a table is followed by its cause and its fix."""
    for block in entry.split("\n\n"):
        lines = block.splitlines()
        rows = [row.groups() for row in map(_ROW.match, lines) if row]
        if not rows:
            yield " ".join(lines), 0
        for message, cause, fix in rows[2:]:  # behind the head and its rule
            yield f"{message}\ncause: {cause}\nfix: {fix}", 2
