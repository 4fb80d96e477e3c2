"""Runs `vllm serve` on the loopback interface for as long as a block lasts.

    async with open_engine(EngineOptions(model="small", blocks=97)) as engine:
        client = openai.AsyncOpenAI(base_url=engine.openai_url, api_key="none")

vLLM is four processes that start each other. They run below a shim (`shim.py`), so all of them end with the block,
and also when the process with the block is killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import httpx2
import psutil

from testbed.engine.install import Engine, installed

SHIM = Path(__file__).with_name("shim.py")
# Imports in three processes take 20 to 45 s on two cores, and 180 s have been seen where others kept both busy.
START_S = 600.0
_LOOK_S = 0.2
# vLLM's on CPUs, in tokens.
BLOCK_SIZE = 128
_SHOWN_LINES = 40


class EngineFailed(Exception):
    """The engine ended, or did not answer in time; the message has the end of its log."""


# Of the owner's environment; keys and tokens are nothing to an engine.
_INHERITED = ("HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "SHELL")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """blocks: of the KV cache, of which one is reserved; enough for `kv_gib` if None. block_size: in tokens, a multiple
    of 32. max_model_len: in tokens; what fits the blocks, at most 32768, if None.

    scheduler_cls: "module.Class", found with python_path. environment and arguments come last and so win.
    """

    model: str = "tiny"
    """tiny, small or mid."""
    name: str = "m"
    """What requests call the model."""
    blocks: int | None = None
    block_size: int = BLOCK_SIZE
    kv_gib: int = 1
    max_model_len: int | None = None
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    dev_mode: bool = True
    """POST /reset_prefix_cache and the like."""
    scheduler_cls: str | None = None
    python_path: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class EngineServer:
    """A running engine. pid: of its first process, which started the others."""

    url: str
    name: str
    pid: int
    log: Path

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@asynccontextmanager
async def open_engine(options: EngineOptions | None = None, *, log: Path | None = None) -> AsyncIterator[EngineServer]:
    """Start an engine and wait until it answers; leaving ends all of it.

    log: the file for what it says; else one that goes with the block.
    Raises EngineSetupError if nothing is installed, EngineFailed if it does not come up.
    """
    options = options or EngineOptions()
    engine = installed()
    folder = tempfile.mkdtemp(prefix="toolhub-engine-")  # the shim's to remove
    log = log or Path(folder, "log")
    with _free_port() as port:
        command = _command(engine, options, port)
        async with _running(command, _environment(engine, options, folder), folder, log) as pid:
            server = EngineServer(f"http://127.0.0.1:{port}", options.name, pid, log)
            await _wait_healthy(server)
            yield server


def _command(engine: Engine, options: EngineOptions, port: int) -> list[str]:
    longest = options.max_model_len
    command = [str(engine.bin / "vllm"), "serve", str(engine.models / options.model), "--host=127.0.0.1"]
    command += [f"--port={port}", f"--served-model-name={options.name}", f"--block-size={options.block_size}"]
    if options.blocks is not None:
        longest = longest or min(32768, (options.blocks - 1) * options.block_size)
        command += [f"--num-gpu-blocks-override={options.blocks}"]
    command += [f"--max-model-len={longest or 32768}", f"--scheduling-policy={options.scheduling}", "--dtype=bfloat16"]
    command += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]
    if options.scheduler_cls is not None:
        command += [f"--scheduler-cls={options.scheduler_cls}"]
    return [*command, *options.arguments]


def _environment(engine: Engine, options: EngineOptions, folder: str) -> dict[str, str]:
    """Nothing is asked of the network, and what is written goes to `folder`."""
    path = os.pathsep.join([str(engine.bin), os.environ.get("PATH", os.defpath)])
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {
        **inherited,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(map(str, options.python_path)),
        "TMPDIR": folder,
        "VLLM_CACHE_ROOT": f"{folder}/cache",
        "VLLM_CONFIG_ROOT": f"{folder}/config",
        "HF_HOME": f"{folder}/hf",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
        "VLLM_SERVER_DEV_MODE": str(int(options.dev_mode)),
        **options.environment,
    }


@contextmanager
def _free_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile: it stays bound, and the engine, which reuses addresses, listens."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@asynccontextmanager
async def _running(command: list[str], environment: dict[str, str], folder: str, log: Path) -> AsyncIterator[int]:
    """Run the engine below a shim; the pid is the engine's."""
    with log.open("wb") as file:
        shim = subprocess.Popen(
            [sys.executable, "-I", str(SHIM), folder, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,  # a terminal's Ctrl-C is for the owner
        )
    try:
        assert shim.stdout is not None
        yield int(await anyio.to_thread.run_sync(shim.stdout.readline) or 0)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_end, shim)


def _end(shim: subprocess.Popen[bytes]) -> None:
    """Close the pipes, which makes the shim end the engine and then itself. It bounds its own time."""
    shim.communicate()


async def _wait_healthy(server: EngineServer) -> None:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=5) as client:
        with anyio.move_on_after(START_S):
            while not await _is_healthy(client):
                if not _is_alive(server.pid):
                    raise EngineFailed(f"the engine ended in its start:\n{_end_of(server.log)}")
                await anyio.sleep(_LOOK_S)
            return
    raise EngineFailed(f"the engine did not answer within {START_S:.0f} s:\n{_end_of(server.log)}")


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _is_healthy(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx2.TransportError:
        return False


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
