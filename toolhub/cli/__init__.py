"""The `toolhub` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: errors are one clear message and exit code 2, Ctrl-C is 130."""
    from toolhub.errors import MissingExtra, ToolhubError

    try:
        received = None
        if sys.argv[1:2] == ["stdio"]:
            from toolhub.cli.early import answer_early

            received = answer_early(sys.argv[1:])
        try:
            from toolhub.cli.app import add_installed_commands, app, is_own_command
            from toolhub.cli.help import width_of
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] == "toolhub":
                raise
            raise MissingExtra("hub", f"the command toolhub, which imports {exc.name},") from exc
        if not is_own_command(sys.argv[1:]):
            add_installed_commands()
        app(terminal_width=width_of(sys.stdout), obj=received)
    except ToolhubError as exc:
        sys.stderr.write(f"toolhub: {exc}\n")
        if not isinstance(exc, MissingExtra):  # without the extra `hub` there is no such command
            sys.stderr.write(f"More: {exc.help_command}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
