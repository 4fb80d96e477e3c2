"""Options that the programs of all servers that read pages have."""

from __future__ import annotations

from argparse import ArgumentParser


def add_page_arguments(parser: ArgumentParser) -> None:
    """Add `readers` and `allow_private`, both lists."""
    parser.add_argument(
        "--reader",
        metavar="NAME",
        dest="readers",
        action="append",
        default=[],
        help="jina, direct or browser; can be given several times and is asked in that order",
    )
    parser.add_argument(
        "--allow-private",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a host that may be read although its address is not public; can be given several times",
    )


def add_local_dirs_argument(parser: ArgumentParser) -> None:
    """Add `local_dirs`, a list."""
    parser.add_argument(
        "--local-dir",
        metavar="DIR",
        dest="local_dirs",
        action="append",
        default=[],
        help="a folder that file: URIs may name files in; can be given several times",
    )
