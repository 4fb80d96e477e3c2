"""A page of the documentation whose code blocks are run as they are printed.

Only addresses are replaced: the page names the usual ports, the test has free ones. A block is a file if its first line
is a comment with the file's name, or, for JSON, if the line before the block ends with the name in backquotes and a
colon.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from served_hub import ServedHub, environment, served

ROOT = Path(__file__).parents[2]
# What the pages print.
HUB_URL = "http://127.0.0.1:8765"
MODEL_URL = "http://127.0.0.1:8000"
# Importing an agent's framework takes seconds, and a busy machine multiplies them.
PROGRAM_ENDS_WITHIN_S = 120
_FENCE = re.compile(r"(?P<before>[^\n]*)\n+ *```(?P<kind>\w*)\n(?P<text>.*?)\n *```", re.DOTALL)
_NAME_IN_COMMENT = re.compile(r"(?:#|//) (\S*\.\w+)$")
_NAME_BEFORE = re.compile(r"`([^`]*\.\w+)`:$")


@dataclass(frozen=True)
class Block:
    """name: of the file that it shows; "" for any other block."""

    kind: str
    name: str
    text: str


@dataclass
class PrintedPage:
    """One page, and the folder where its user works."""

    path: Path
    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    """What is replaced in everything that is run."""

    @property
    def blocks(self) -> list[Block]:
        return blocks_of(self.path.read_text())

    def file(self, name: str) -> str:
        """The text of a file that the page shows."""
        (text,) = [block.text for block in self.blocks if block.name == name]
        return self._here(text)

    def write(self, *names: str) -> None:
        """Make files of the page, in the user's folder."""
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.file(name) + "\n")

    def command(self, containing: str) -> str:
        """The one shell command of the page with these words; lines that end in a backslash go on."""
        shown = "\n".join(block.text for block in self.blocks if block.kind == "sh").replace("\\\n", " ")
        (line,) = [line for line in shown.splitlines() if containing in line and not line.startswith("#")]
        return self._here(" ".join(line.split()))

    def script(self, containing: str) -> str:
        """The one shell block of the page with these words."""
        (text,) = [block.text for block in self.blocks if block.kind == "sh" and containing in block.text]
        return self._here(text)

    def _here(self, text: str) -> str:
        for printed, actual in self.addresses.items():
            text = text.replace(printed, actual)
        return text

    @contextmanager
    def hub(self, *, hub_bin: Path, **environ: str) -> Iterator[ServedHub]:
        """The hub, started with the page's own line `toolhub serve` and a free port."""
        words = self.command("toolhub serve").split()
        _, serve, option, config, *options = words[words.index("toolhub") :]
        assert (serve, option) == ("serve", "--config")
        self.write(config)
        state = {"XDG_STATE_HOME": str(self.folder / "state")}
        printed = dict(word.split("=", 1) for word in words[: words.index("toolhub")])
        command = [str(hub_bin / "toolhub")]
        env = _with_path(hub_bin) | state | printed | environ
        with served(self.folder / config, *options, command=command, env=env) as hub:
            self.addresses[HUB_URL] = hub.http
            yield hub

    def run(self, command: str, *bins: Path, **environ: str) -> str:
        """Run a shell command in the user's folder and return what it prints. bins: what comes first on PATH."""
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.folder,
            # Programs that an MCP client starts get its HOME, but not XDG_STATE_HOME.
            env=environment(_with_path(*bins) | {"HOME": str(self.folder)} | environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROGRAM_ENDS_WITHIN_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout


def blocks_of(markdown: str) -> list[Block]:
    """Return every fenced block. The indentation of a fence in a list is removed."""
    found = []
    for match in _FENCE.finditer(markdown):
        first, _, rest = match["text"].partition("\n")
        if in_comment := _NAME_IN_COMMENT.match(first):
            found.append(Block(match["kind"], in_comment[1], rest))
        else:
            before = _NAME_BEFORE.search(match["before"])
            found.append(Block(match["kind"], before[1] if before else "", match["text"]))
    return found


def _with_path(*bins: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join([*map(str, bins), os.environ["PATH"]])}


def printed_page(name: str, folder: Path, *, addresses: Sequence[tuple[str, str]] = ()) -> PrintedPage:
    """A recipe by its name."""
    return PrintedPage(ROOT / "docs" / "recipes" / f"{name}.md", folder, dict(addresses))
