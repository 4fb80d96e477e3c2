"""The questions `kv` and `loop` on a machine with a GPU and a stock engine, in one call.

    python benchmarks/gpu/measure.py --model Qwen/Qwen3-8B
    python benchmarks/gpu/measure.py --model /models/qwen --engine sglang --program /opt/sglang/bin/python
    python benchmarks/gpu/measure.py --model some/config-folder --random         # random weights, vLLM only

Starts and ends the engines itself, one at a time, on the loopback interface, and writes results/<date>/NAME.json and
tables. Needs a checkout of toolhub, the packages of its extras `bench` and `agent` in this Python, and an engine, which
may have an environment of its own (--program); nothing of `make engine`. Prompts and cache are --scale times as long as
on a CPU, for a GPU prefills that much faster. vLLM's cache is cut with --num-gpu-blocks-override, SGLang's with
--max-total-tokens. Pins are vLLM's alone (toolhub's scheduler, for the version it supports); a part that this engine
cannot take is left out with --no-pins.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [str(ROOT / name) for name in (".", "agent_loop", "servers", "sandbox")]
if __name__ == "__main__":
    sys.path[:0] = FOLDERS

try:
    import anyio
    import anyio.to_thread
    import httpx2
    from rich.console import Console

    from benchmarks import runner
    from benchmarks.common.result import Benchmark
    from benchmarks.kv import benchmark as kv
    from benchmarks.kv import results as kv_results
    from benchmarks.kv.history import Talk
    from benchmarks.kv.mix import TaskMix
    from benchmarks.kv.waits import Sizes
    from benchmarks.llm.scripted_agent import EngineKind, Served
    from benchmarks.loop import benchmark as loop
    from benchmarks.report import pages as report
except ModuleNotFoundError as exc:
    sys.exit(f"{exc.name} is missing: {sys.executable} -m pip install -e '{ROOT}[bench,agent]'")

# Weights from a slow disk, and the compilation of graphs.
START_S = 1800.0
STOP_S = 60.0
_LOOK_S = 1.0
_PAUSE_S = 0.1
NAME = "m"
VLLM_BLOCK = 16
# On a CPU the cache holds 96 blocks of 128 tokens; see `kv.cpu_engines`.
_CACHE = 96 * 128


@dataclass(frozen=True)
class Machine:
    """What is measured. extra: more arguments for the engine. longest: tokens of the longest prompt."""

    kind: EngineKind
    program: str
    model: str
    scale: int
    longest: int
    random: bool
    extra: Sequence[str]
    log: Path

    @property
    def cache_tokens(self) -> int:
        return _CACHE * self.scale

    def command(self, port: int, *, cache: int | None = None, pins: bool = False) -> list[str]:
        """Return the engine's command. cache: tokens of the KV cache; None: all that fit into memory."""
        make = self._sglang if self.kind == "sglang" else self._vllm
        return [*make(port, cache, pins), *self.extra]

    def _vllm(self, port: int, cache: int | None, pins: bool) -> list[str]:
        command = [self.program, "serve", self.model, "--host=127.0.0.1", f"--port={port}"]
        command += [f"--served-model-name={NAME}", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += [f"--max-model-len={min(self.longest, cache or self.longest)}"]
        if cache is not None:
            # One block is reserved.
            command += [f"--block-size={VLLM_BLOCK}", f"--num-gpu-blocks-override={cache // VLLM_BLOCK + 1}"]
        command += ["--load-format=dummy"] * self.random
        return command + ["--scheduler-cls=toolhub_agent.vllm_plugin.PinScheduler"] * pins

    def _sglang(self, port: int, cache: int | None, pins: bool) -> list[str]:
        command = [self.program, "-m", "sglang.launch_server", f"--model-path={self.model}", "--host=127.0.0.1"]
        command += [f"--port={port}", f"--served-model-name={NAME}", "--enable-cache-report", "--enable-metrics"]
        command += [f"--context-length={min(self.longest, cache or self.longest)}"]
        return command if cache is None else [*command, f"--max-total-tokens={cache}"]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    program = arguments.program or (sys.executable if arguments.engine == "sglang" else "vllm")
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(
        arguments.engine,
        program,
        arguments.model,
        arguments.scale,
        arguments.longest,
        arguments.random,
        arguments.extra,
        arguments.out / "engine.log",
    )
    for question in questions(machine, pins=not arguments.no_pins, quick=arguments.quick):
        if arguments.only not in (None, question.name):
            continue
        result = runner.measure(question, quick=arguments.quick)
        result |= {"command": " ".join(["measure.py", *(argv or sys.argv[1:])]), "gpu": _gpus()}
        report.print_result(result, Console(highlight=False, width=160))
        path = arguments.out / f"{question.name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"kept in {path}")


def questions(machine: Machine, *, pins: bool, quick: bool) -> list[Benchmark[Any]]:
    """`kv` and `loop` with their engines replaced and their sizes multiplied."""
    about = f"{'vLLM' if machine.kind == 'vllm' else 'SGLang'} with {machine.model}, {_gpus() or 'no GPU found'}"
    found: list[Benchmark[Any]] = []
    small = functools.partial(_engine, machine, cache=machine.cache_tokens)
    pinning = functools.partial(_engine, machine, cache=machine.cache_tokens, pins=True)
    whole = functools.partial(_engine, machine)
    engines = kv_results.KvEngines(
        about, machine.cache_tokens, small, pinning if _can_pin(machine, pins) else None, whole
    )
    scaled = {name: _scaled(scale, machine, engines) for name, scale in _both(kv.BENCHMARK).items()}
    found.append(replace(kv.BENCHMARK, full=scaled["full"], quick=scaled["quick"]))
    loops = {
        name: replace(scale, engines=loop.LoopEngines(about, whole, whole))
        for name, scale in _both(loop.BENCHMARK).items()
    }
    found.append(replace(loop.BENCHMARK, full=loops["full"], quick=loops["quick"]))
    return found


def _both(question: Benchmark[Any]) -> dict[str, Any]:
    return {"full": question.full, "quick": question.quick}


def _can_pin(machine: Machine, wanted: bool) -> bool:
    return wanted and machine.kind == "vllm"


def _scaled(scale: kv_results.KvScale, machine: Machine, engines: kv_results.KvEngines) -> kv_results.KvScale:
    by = machine.scale

    def longer(sizes: Sizes) -> Sizes:
        return replace(sizes, prompt=sizes.prompt * by, filler=sizes.filler * by, result=sizes.result)

    mix: TaskMix = replace(scale.mix, prompts=[tokens * by for tokens in scale.mix.prompts])
    talk: Talk = replace(scale.talk, longest=machine.longest - scale.talk.result)
    return replace(scale, engines=engines, sizes=longer(scale.sizes), calm=longer(scale.calm), mix=mix, talk=talk)


# --- engines ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _engine(machine: Machine, *, cache: int | None = None, pins: bool = False) -> AsyncIterator[Served]:
    """A running engine; its whole process group ends with the block. Raises RuntimeError if it does not come up."""
    with socket.socket() as holder:
        # Kept bound: no other process gets the port, and engines reuse addresses.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        environment = {**os.environ, **_pin_environment()} if pins else dict(os.environ)
        with machine.log.open("ab") as log:
            process = subprocess.Popen(
                machine.command(port, cache=cache, pins=pins),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            served = Served(f"http://127.0.0.1:{port}/v1", NAME, machine.kind)
            await _wait_healthy(process, served, machine.log)
            yield served
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, process)


def _pin_environment() -> Mapping[str, str]:
    path = os.pathsep.join([str(ROOT / "agent_loop"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "TOOLHUB_PIN_MAX_SHARE": "0.7"}


async def _wait_healthy(process: subprocess.Popen[bytes], served: Served, log: Path) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=10) as client:
        with anyio.move_on_after(START_S):
            while process.poll() is None:
                try:
                    if (await client.get(f"{served.root}/health")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await anyio.sleep(_LOOK_S)
    raise RuntimeError(f"the engine did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to all of it, then SIGKILL to whatever of its group is left.

    The first process may end before the others, and those that are killed leave their shared memory behind.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _has_ended(process, number):
            break
        until = time.monotonic() + STOP_S
        while time.monotonic() < until and not _has_ended(process):
            time.sleep(_PAUSE_S)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes], number: int = 0) -> bool:
    """Send a signal to its group, by default none; return whether the group was empty."""
    process.poll()  # one that has ended stays in its group until it is waited for
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return True
    return False


def _gpus() -> str:
    """Return names and driver of the GPUs; "" without NVIDIA's tool."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(found.stdout.split("\n")).strip("; ")


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model's name or folder")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--program", help="vLLM's command, or the Python that has sglang")
    parser.add_argument("--scale", type=int, default=4, help="times as long prompts and as large a cache (%(default)s)")
    parser.add_argument("--longest", type=int, default=131_072, help="the model's context in tokens (%(default)s)")
    parser.add_argument("--random", action="store_true", help="vLLM: random weights for the model's config")
    parser.add_argument("--only", choices=("kv", "loop"), help="one of the two questions")
    parser.add_argument("--quick", action="store_true", help="a first look")
    parser.add_argument("--no-pins", action="store_true", help="leave out toolhub's scheduler")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results (%(default)s)")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="the rest: arguments of the engine")
    return parser


if __name__ == "__main__":
    main()
