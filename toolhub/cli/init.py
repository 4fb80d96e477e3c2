"""`toolhub init` and `toolhub config schema`."""

from __future__ import annotations

from toolhub.cli.shared import print_json
from toolhub.config.schema import config_schema


def print_schema() -> None:
    print_json(config_schema())
