"""`python -m toolhub_servers NAME [options]`: run one builtin server as a program that speaks MCP over stdio."""

from __future__ import annotations

import importlib
import sys

from toolhub.extensions import builtin_servers


def main() -> None:
    own = {
        name: target.partition(":")[0]
        for name, target in builtin_servers().items()
        if target.startswith(f"{__package__}.")
    }
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in own:
        usage = f"usage: python -m toolhub_servers NAME [options]\nNAME is one of: {', '.join(sorted(own))}\n"
        is_help = name in ("-h", "--help")
        (sys.stdout if is_help else sys.stderr).write(usage)
        sys.exit(0 if is_help else 2)
    del sys.argv[1]  # what is left is the server's own command line
    importlib.import_module(own[name]).main()


if __name__ == "__main__":
    main()
