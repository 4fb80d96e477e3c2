"""`toolhub record`, `replay` and `cassette`."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from toolhub.cassette.recording import PACKED_SUFFIX, SUFFIX, Exchange, files_in, read_recording
from toolhub.cli.shared import DEFAULT_FILES, log_to_stderr
from toolhub.cli.shared import run as run_async
from toolhub.client import connect
from toolhub.config import Config, load_config
from toolhub.config.models import CassetteSettings
from toolhub.errors import ConfigError
from toolhub.serve.run import BindSettings, serve

# Arguments beyond this number of characters are cut.
_SHOWN_CHARS = 200


def record(folder: Path, command: Sequence[str], path: Path | None) -> None:
    """Run a command with a hub that records; exit with the command's code, or 1 if something was not recorded."""
    if folder.is_dir() and any(folder.glob(f"*{ending}") for ending in (SUFFIX, PACKED_SUFFIX)):
        raise ConfigError(f"{folder} holds recordings already; choose another folder, or remove it first")
    if path is None:
        path = next((Path(name) for name in DEFAULT_FILES if os.path.exists(name)), None)
    config = load_config(path) if path is not None else Config()
    _run(config, CassetteSettings(dir=folder, mode="record"), command)


def replay(folder: Path, command: Sequence[str], time_scale: float) -> None:
    """Run a command with a hub that replays; exit with the command's code, or 1 if a call was not recorded."""
    _run(Config(), CassetteSettings(dir=folder, mode="replay", time_scale=time_scale), command)


def _run(config: Config, cassette: CassetteSettings, command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigError(f"cannot run {command[0]!r}: there is no such program")
    log_to_stderr("warning")
    config = config.model_copy(update={"hub": config.hub.model_copy(update={"cassette": cassette})})
    with tempfile.TemporaryDirectory(prefix="toolhub-") as folder:
        socket = Path(folder, "hub.sock")
        bind = BindSettings(host=None, port=0, uds=socket, token=None, allow_inline=True)
        running = _Command(command, f"unix://{socket}", cassette)
        run_async(functools.partial(serve, config, bind, on_ready=lambda *_: None, until=running.run))
    sys.exit(running.code)


class _Command:
    """The command that uses the hub. code: the one to exit with."""

    def __init__(self, command: Sequence[str], address: str, cassette: CassetteSettings) -> None:
        self.code = 1
        self._command = command
        self._address = address
        self._cassette = cassette

    async def run(self) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "TOOLHUB_TOKEN"}
        environ["TOOLHUB_URL"] = self._address
        async with await anyio.open_process(self._command, stdin=None, stdout=None, stderr=None, env=environ) as child:
            code = await child.wait()
        async with connect(self._address, token=None) as hub:
            counts = (await hub.statistics())["cassette"]
        self.code = code if code >= 0 else 128 - code
        if self._cassette.mode == "record":
            failed, said = counts["lost"], f"exchanges recorded: {counts['recorded'] - counts['lost']}"
            lost = f"; could not be recorded: {failed}" if failed else ""
        else:
            failed, said = counts["missed"], f"exchanges replayed: {counts['replayed']}"
            lost = f"; not in the recording: {failed}" if failed else ""
        sys.stderr.write(f"toolhub: {said}{lost} ({self._cassette.dir})\n")
        if failed and not self.code:
            self.code = 1


def show(path: Path) -> None:
    """Print the exchanges of recordings, a line each and without times, so that two of them can be compared."""
    for file in files_in(path) if path.is_dir() else [path]:
        recording = read_recording(file)
        sys.stdout.write(f"task {recording.header.task}, {len(recording.exchanges)} exchanges\n")
        for exchange in recording.exchanges:
            sys.stdout.write(f"{_line(exchange)}\n")


def _line(exchange: Exchange) -> str:
    arguments = json.dumps(exchange.arguments, sort_keys=True, ensure_ascii=False)
    if len(arguments) > _SHOWN_CHARS:
        arguments = f"{arguments[:_SHOWN_CHARS]}… {_digest(arguments)}"
    answer = json.dumps(exchange.result if exchange.result is not None else exchange.error, ensure_ascii=False)
    changes = " (changes the server)" if exchange.changes else ""
    return (
        f"{exchange.n:4} {exchange.server}/{exchange.tool} {arguments}{changes} -> "
        f"{exchange.outcome}, {len(answer)} characters, {_digest(answer)}"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
