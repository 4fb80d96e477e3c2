"""The `toolhub` command as a new user runs it: in a folder of its own, 80 columns wide."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_process import Done, run_main
from served_hub import TOOLHUB, environment

from toolhub.cli import main


@dataclass(frozen=True)
class Shell:
    """Runs commands in `folder`. hub: the address of a hub that all of them use.

    A command runs in this process, because a process of its own spends two seconds with imports. own_process: for tests
    of what only a process has, and for tests whose event loop runs already.
    """

    folder: Path
    hub: str = ""
    own_process: bool = False

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
        own = {"XDG_STATE_HOME": str(self.folder / "state")} | ({"TOOLHUB_URL": self.hub} if self.hub else {})
        env = environment(own | dict(env or {}))
        if self.own_process:
            done = subprocess.run(
                [*TOOLHUB, *arguments],
                cwd=self.folder,
                env=env,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=180,
            )
        else:
            done = run_main(main, ["toolhub", *arguments], folder=self.folder, env=env, stdin=stdin)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def together(self, *commands: Sequence[str], env: Mapping[str, str] | None = None) -> list[Done]:
        return [self(*command, env=env) for command in commands]

    def json(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> Any:
        """What a command prints with --json."""
        done = self(*arguments, "--json", env=env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def refusal(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """The message of a command that cannot be carried out."""
        return refused(self(*arguments, env=env))


def refused(done: Done) -> str:
    """The message of a command that was not carried out, without the line that names the entry of its error."""
    assert done.returncode == 2 and done.stdout == ""
    message, _, more = done.stderr.removesuffix("\n").rpartition("\n")
    assert message.startswith("toolhub: ")
    assert more.startswith("More: toolhub errors ")
    return message
