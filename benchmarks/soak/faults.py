"""One function per kind of fault. Each harms something that the load uses.

A fault returns what it did, and which call shows that the hub has recovered: of a task of the load, or of a new
task. Faults that last (a stopped process, a full disk) last `HELD_S`. Times to recover count from the end of the fault
where the hub has to wait for it, such as SIGCONT; otherwise from its beginning.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import psutil

from benchmarks.common.leak_watch import open_client
from benchmarks.common.measure import tree
from benchmarks.common.result import ROOT, Json
from benchmarks.common.subprocess_worker import Worker
from benchmarks.soak.hub import SoakHub
from benchmarks.soak.leftovers import fault_cgroup, own_cgroup
from benchmarks.soak.upstream import PAGE

HELD_S = 2.0
# Without an answer for this long, the hub has not recovered from the fault.
RECOVERED_WITHIN_S = 120.0
# On a machine that is busy with others, a new session over HTTP and its first call take 15 s.
_PROBE_S, _PROBE_TIMEOUT_S = 0.05, 60.0
_HOG_BYTES, _GROUP_BYTES = 256 << 20, 32 << 20
_HOUR_S = 3600.0
# A few milliseconds on a quiet machine.
_REMOUNT_S = 10.0
_CLIENT = [sys.executable, "-m", "benchmarks.soak.clients"]
_SILENT_CONNECTIONS, _HEADER_BYTES = 200, 1 << 20


@dataclass(frozen=True)
class Struck:
    """What a fault did. what: for people. task: of the load, "" for a new one. since: when the recovery begins."""

    what: str
    server: str = "exec"
    task: str = ""
    since: float = field(default_factory=time.monotonic)


class NothingToStrike(Exception):
    """Nothing of that kind is there at the moment."""


@dataclass
class FaultTargets:
    """What faults can harm, and the means to do it."""

    hub: SoakHub
    upstream: Worker
    source: random.Random
    load: list[Worker] = field(default_factory=list)
    page: str = ""
    """The address that a browser opens."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with open_client(str(self.hub.socket)) as client:
            yield client

    async def statistics(self) -> Json:
        async with self.client() as client:
            found: Json = (await client.get("/v1/statistics")).raise_for_status().json()
            return found

    async def slot(self, server: str) -> tuple[str, int]:
        """Return the task and the pid of one of the load's servers that is up. Raises NothingToStrike."""
        told = await self.statistics()
        if server == "shared":
            pids = [("", slot["pid"]) for slot in told["shared"] if slot["server"] == server and slot["pid"]]
        else:
            pids = [
                (task["id"], slot["pid"])
                for task in told["tasks"]
                for slot in task["slots"]
                if task["id"].startswith("soak-") and slot["server"] == server and slot["pid"]
            ]
        if not pids:
            raise NothingToStrike(f"no {server} server is up")
        return self.source.choice(pids)

    def key(self) -> str:
        return f"probe-{self.hub.pid}-{next(self._numbers)}"

    async def tell(self, task: str, server: str, tool: str, arguments: Json) -> httpx2.Response:
        """Make one call in a task of the load."""
        async with self.client() as client:
            body = {"server": server, "tool": tool, "arguments": arguments, "timeout_s": _PROBE_TIMEOUT_S}
            return await client.post(f"/v1/tasks/{task}/calls", json=body)

    async def set_upstream(self, how: str) -> Json:
        return await anyio.to_thread.run_sync(lambda: self.upstream.ask({"how": how}))

    def processes(self, name: str) -> list[psutil.Process]:
        """Processes below the hub whose name or command line has this in it."""
        found = []
        for process in tree(self.hub.pid)[1:]:
            with suppress(psutil.NoSuchProcess):
                if name in process.name() or name in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def choose(self, processes: list[psutil.Process]) -> psutil.Process:
        if not processes:
            raise NothingToStrike("no such process")
        return self.source.choice(processes)


Fault = Callable[[FaultTargets], Awaitable[Struck]]


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise NothingToStrike("it ended by itself") from None


async def _stop(pid: int) -> None:
    """Send SIGSTOP, and SIGCONT after a while."""
    _kill(pid, signal.SIGSTOP)
    try:
        await anyio.sleep(HELD_S)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# --- servers ----------------------------------------------------------------------------------------------------------


def _server_killed(server: str) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        task, pid = await targets.slot(server)
        _kill(pid)
        return Struck(f"{server} of {task or 'all tasks'}", server, task)

    return strike


def _server_stopped(server: str) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        task, pid = await targets.slot(server)
        await _stop(pid)
        return Struck(f"{server} of {task or 'all tasks'}", server, task)

    return strike


async def _shim(targets: FaultTargets, server: str) -> tuple[str, int]:
    """Return the task and the shim's pid of one of the load's servers. A shim has no other child."""
    task, pid = await targets.slot(server)
    with suppress(psutil.NoSuchProcess):
        shim = psutil.Process(pid).parent()
        if shim is not None and shim.pid > 1 and len(shim.children()) == 1:
            return task, shim.pid
    raise NothingToStrike("it ended by itself")


def _shim_killed(server: str) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        task, pid = await _shim(targets, server)
        _kill(pid)
        return Struck(f"shim of {server} of {task}", server, task)

    return strike


async def _shim_stopped(targets: FaultTargets) -> Struck:
    task, pid = await _shim(targets, "exec")
    await _stop(pid)
    return Struck(f"shim of exec of {task}", "exec", task)


def _supervisor(targets: FaultTargets) -> int:
    supervisors = [process for process in targets.processes("spawn/supervisor.py") if process.ppid() == targets.hub.pid]
    return targets.choose(supervisors).pid


async def _supervisor_killed(targets: FaultTargets) -> Struck:
    _kill(_supervisor(targets))
    return Struck("the supervisor of all servers")


async def _supervisor_stopped(targets: FaultTargets) -> Struck:
    await _stop(_supervisor(targets))
    return Struck("the supervisor of all servers")


async def _zygote_killed(targets: FaultTargets) -> Struck:
    task, pid = await targets.slot("fork")
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).parents():
            if process.pid == targets.hub.pid:
                break
            if "zygote.py" in " ".join(process.cmdline()) and len(process.children()) > 1:
                _kill(process.pid)
                return Struck("a zygote of forked servers", "fork")
    raise NothingToStrike("no zygote with servers")


def _misbehaving(how: str) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        server = targets.source.choice(("exec", "fork"))
        task, _ = await targets.slot(server)
        await targets.tell(task, server, "misbehave", {"how": how})
        return Struck(f"{server} of {task}", server, task)

    return strike


async def _out_of_memory(targets: FaultTargets) -> Struck:
    task, pid = await targets.slot("exec")
    group = fault_cgroup("memory")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(_GROUP_BYTES))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as exc:
        raise NothingToStrike(f"no memory cgroup: {exc.strerror}") from exc
    await targets.tell(task, "exec", "hog", {"bytes": _HOG_BYTES})
    with suppress(OSError):
        group.rmdir()  # at the end of the soak, if its last member is not gone yet
    return Struck(f"exec of {task}", "exec", task)


# --- sandboxes --------------------------------------------------------------------------------------------------------


def _agents(targets: FaultTargets) -> list[psutil.Process]:
    return [process for process in targets.processes("sbx-agent") if process.children()]


async def _agent_killed(targets: FaultTargets) -> Struck:
    _kill(targets.choose(_agents(targets)).pid)
    return Struck("the agent of a sandbox", "python")


async def _agent_stopped(targets: FaultTargets) -> Struck:
    await _stop(targets.choose(_agents(targets)).pid)
    return Struck("the agent of a sandbox", "python")


async def _worker_killed(targets: FaultTargets) -> Struck:
    agent = targets.choose(_agents(targets))
    with suppress(psutil.NoSuchProcess):
        _kill(targets.choose(agent.children()).pid)
        return Struck("the Python of a sandbox", "python")
    raise NothingToStrike("it ended by itself")


async def _worker_stopped(targets: FaultTargets) -> Struck:
    agent = targets.choose(_agents(targets))
    with suppress(psutil.NoSuchProcess):
        await _stop(targets.choose(agent.children()).pid)
        return Struck("the Python of a sandbox", "python")
    raise NothingToStrike("it ended by itself")


# --- the browser ------------------------------------------------------------------------------------------------------


def _browser(strike_pid: Callable[[int], Awaitable[None]]) -> Fault:
    """Strikes Chromium while a task has a page open."""

    async def strike(targets: FaultTargets) -> Struck:
        if not targets.hub.has_browser:
            raise NothingToStrike("there is no Chromium, or no Playwright")
        async with targets.client() as client:
            task = targets.key()
            (await client.post("/v1/tasks", json={"id": task, "lease_s": 60})).raise_for_status()
            try:
                if not await answered_by(client, task, "browser", task, targets.page):
                    raise NothingToStrike("Chromium did not show a page")
                of_browser = targets.processes("--remote-debugging-pipe") + targets.processes("--remote-debugging-port")
                await strike_pid(targets.choose(of_browser).pid)
            finally:
                await client.delete(f"/v1/tasks/{task}")
        return Struck("Chromium", "browser")

    return strike


async def _kill_now(pid: int) -> None:
    _kill(pid)


# --- the hub ----------------------------------------------------------------------------------------------------------


async def _hub_killed(targets: FaultTargets) -> Struck:
    since = time.monotonic()
    await anyio.to_thread.run_sync(lambda: targets.hub.end(signal.SIGKILL))
    await anyio.to_thread.run_sync(targets.hub.start)
    return Struck("the hub; started again", since=since)


async def _hub_restarted(targets: FaultTargets) -> Struck:
    since = time.monotonic()
    await anyio.to_thread.run_sync(lambda: targets.hub.end(signal.SIGTERM))
    await anyio.to_thread.run_sync(targets.hub.start)
    return Struck("the hub; started again", since=since)


async def _hub_stopped(targets: FaultTargets) -> Struck:
    await _stop(targets.hub.pid)
    return Struck("the hub")


async def _disk_full(targets: FaultTargets) -> Struck:
    if not targets.hub.has_own_disk:
        raise NothingToStrike("the state folder has no disk of its own")
    since, filler = time.monotonic(), targets.hub.state / "filler"
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        await _new_task(targets)
        await anyio.sleep(HELD_S)
    finally:
        filler.unlink(missing_ok=True)
    return Struck("no byte left in the state folder", since=since)


async def _read_only(targets: FaultTargets) -> Struck:
    if not targets.hub.has_own_disk:
        raise NothingToStrike("the state folder has no disk of its own")
    since = time.monotonic()
    await _remount(targets.hub.state, "ro")  # files that are open for writing keep a disk writable: the journal
    try:
        await _new_task(targets)
        await anyio.sleep(HELD_S)
    finally:
        with anyio.move_on_after(_REMOUNT_S, shield=True):
            await _remount(targets.hub.state, "rw")
    return Struck("the state folder cannot be written", since=since)


async def _remount(folder: Path, how: str) -> None:
    # A bind mount over the folder: the disk below cannot become read-only while the hub's journal is open.
    if how == "ro":
        await anyio.run_process(["mount", "--bind", str(folder), str(folder)])
        await anyio.run_process(["mount", "-o", "remount,bind,ro", str(folder)])
    else:
        await anyio.run_process(["umount", "--lazy", str(folder)])


async def _new_task(targets: FaultTargets) -> None:
    """Start servers of a new task while the fault lasts."""
    async with targets.client() as client:
        await answered_by(client, targets.key(), "exec", "")


async def _no_descriptors(targets: FaultTargets) -> Struck:
    process = psutil.Process(targets.hub.pid)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 4, before[1]))
    try:
        await anyio.sleep(HELD_S)
    finally:
        process.rlimit(resource.RLIMIT_NOFILE, before)
    return Struck("4 descriptors left for the hub")


async def _no_processes(targets: FaultTargets) -> Struck:
    """The supervisor cannot fork. A limit of a cgroup, as RLIMIT_NPROC does not bind root."""
    group, home = fault_cgroup("pids"), own_cgroup("pids") / "cgroup.procs"
    supervisor = _supervisor(targets)
    try:
        group.mkdir(exist_ok=True)
        (group / "pids.max").write_text("1")
        (group / "cgroup.procs").write_text(str(supervisor))
    except OSError as exc:
        raise NothingToStrike(f"no pids cgroup: {exc.strerror}") from exc
    try:
        await anyio.sleep(HELD_S)
    finally:
        # The limit holds until the group is empty: what the supervisor forks in it would keep it.
        with suppress(OSError):  # the supervisor was killed meanwhile
            home.write_text(str(supervisor))
        with suppress(OSError):
            group.rmdir()
    return Struck("the supervisor cannot fork")


def _clock_jumps(seconds: float) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        since = time.monotonic()
        targets.hub.set_clock(seconds)
        try:
            await _new_task(targets)
            await anyio.sleep(HELD_S)
        finally:
            targets.hub.set_clock(0)
        return Struck(f"the hub's wall clock by {seconds / _HOUR_S:+.0f} h, and back", since=since)

    return strike


# --- upstream ---------------------------------------------------------------------------------------------------------


def _upstream(how: str) -> Fault:
    async def strike(targets: FaultTargets) -> Struck:
        before = (await targets.set_upstream(how))["spoiled"]
        try:
            await anyio.sleep(HELD_S)
        finally:
            after = (await targets.set_upstream(""))["spoiled"]
        return Struck(f"{after - before} calls of the HTTP server", "http")

    return strike


# --- clients ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _client(targets: FaultTargets, what: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a client in a process of its own, and wait until it is ready."""
    address = f"unix://{targets.hub.socket}"
    process = subprocess.Popen([*_CLIENT, what, address, targets.key()], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    stdout = process.stdout
    try:
        with anyio.fail_after(RECOVERED_WITHIN_S):
            if not await anyio.to_thread.run_sync(stdout.readline, abandon_on_cancel=True):
                raise NothingToStrike("the client did not start")
        yield process
    finally:
        process.kill()
        process.wait()
        stdout.close()


async def _client_vanishes(targets: FaultTargets) -> Struck:
    async with _client(targets, "vanish") as process:
        process.kill()
    return Struck("a client with calls in flight")


async def _client_forks(targets: FaultTargets) -> Struck:
    async with _client(targets, "fork") as process:
        assert process.stdout is not None
        last = await anyio.to_thread.run_sync(process.stdout.readline)
    if last.strip() != b"both":
        raise AssertionError("after a fork, the client and its child could not both call")
    return Struck("a client, and the child goes on calling")


async def _client_stops_reading(targets: FaultTargets) -> Struck:
    since = time.monotonic()
    request = b"GET /v1/statistics HTTP/1.1\r\nhost: hub\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(targets.hub.socket))
        sock.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(64):
                sock.send(request)
        await anyio.sleep(HELD_S)
    return Struck("a client with 64 requests and no answer read", since=since)


async def _headers_without_end(targets: FaultTargets) -> Struck:
    since = time.monotonic()
    with socket.socket() as sock, suppress(OSError):
        sock.connect(("127.0.0.1", targets.hub.port))
        sock.settimeout(HELD_S)
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: hub\r\n")
        deadline, sent = time.monotonic() + HELD_S, 0
        while sent < _HEADER_BYTES and time.monotonic() < deadline:
            sent += sock.send(b"x-%d: %s\r\n" % (sent, b"x" * 1000))
            await anyio.sleep(0)
    return Struck("headers without an end", since=since)


async def _silent_connections(targets: FaultTargets) -> Struck:
    since = time.monotonic()
    silent = []
    try:
        with suppress(OSError):
            for _ in range(_SILENT_CONNECTIONS):
                sock = socket.create_connection(("127.0.0.1", targets.hub.port), timeout=HELD_S)
                silent.append(sock)
                sock.send(b"GET /")
        await anyio.sleep(HELD_S)
    finally:
        for sock in silent:
            sock.close()
    return Struck(f"{len(silent)} connections that begin a request and say no more", since=since)


KINDS: dict[str, Fault] = {
    "server killed (exec)": _server_killed("exec"),
    "server killed (fork)": _server_killed("fork"),
    "server of all tasks killed": _server_killed("shared"),
    "server stopped (exec)": _server_stopped("exec"),
    "server stopped (fork)": _server_stopped("fork"),
    "server answers the wrong id": _misbehaving("wrong id"),
    "server answers twice": _misbehaving("twice"),
    "server sends a megabyte of noise": _misbehaving("noise"),
    "server out of memory in a cgroup": _out_of_memory,
    "shim killed (exec)": _shim_killed("exec"),
    "shim killed (fork)": _shim_killed("fork"),
    "shim stopped": _shim_stopped,
    "supervisor killed": _supervisor_killed,
    "supervisor stopped": _supervisor_stopped,
    "zygote killed": _zygote_killed,
    "sandbox agent killed": _agent_killed,
    "sandbox agent stopped": _agent_stopped,
    "sandbox Python killed": _worker_killed,
    "sandbox Python stopped": _worker_stopped,
    "browser killed": _browser(_kill_now),
    "browser stopped": _browser(_stop),
    "hub killed": _hub_killed,
    "hub restarted": _hub_restarted,
    "hub stopped": _hub_stopped,
    "disk full": _disk_full,
    "state folder read-only": _read_only,
    "no descriptors left": _no_descriptors,
    "no processes left": _no_processes,
    "clock an hour forward": _clock_jumps(_HOUR_S),
    "clock an hour back": _clock_jumps(-_HOUR_S),
    "upstream answers 429": _upstream("429"),
    "upstream answers 500": _upstream("500"),
    "upstream cuts its answers": _upstream("cut"),
    "upstream drips": _upstream("drip"),
    "upstream answers the wrong id": _upstream("wrong id"),
    "client vanishes": _client_vanishes,
    "client forks": _client_forks,
    "client stops reading": _client_stops_reading,
    "headers without end": _headers_without_end,
    "silent connections": _silent_connections,
}
# These faults restart the hub; its growth is then measured anew.
ENDS_THE_HUB = frozenset({"hub killed", "hub restarted"})
# How many faults come before them, while the load begins.
_BEFORE_THE_HUB_ENDS = 5


def deck(seed: int, *, start: int = 0) -> Iterator[str]:
    """Yield kinds in the seed's order: each once before any comes again. start: how many came before.

    The first round ends the hub early, because later the hub is to have one long life.
    """
    kinds = sorted(KINDS)

    def deal() -> Iterator[list[str]]:
        source = random.Random(seed)
        first = source.sample(kinds, len(kinds))
        others = [kind for kind in first if kind not in ENDS_THE_HUB]
        yield others[:_BEFORE_THE_HUB_ENDS] + [kind for kind in first if kind in ENDS_THE_HUB]
        yield others[_BEFORE_THE_HUB_ENDS:]
        while True:
            yield source.sample(kinds, len(kinds))

    return itertools.islice(itertools.chain.from_iterable(deal()), start, None)


async def answered_by(client: httpx2.AsyncClient, key: str, server: str, task: str, page: str = "") -> bool | None:
    """Make one call. Return whether it was answered; None if the task has ended by itself.

    task: empty for a new one. page: the address that a browser opens.
    """
    name = task
    try:
        if not task:
            opened = await client.post("/v1/tasks", json={"id": key, "lease_s": 60})
            if opened.status_code != 201:
                return False
            name = key
        body: Json = {"server": server, "tool": "work", "arguments": {"key": key}, "timeout_s": _PROBE_TIMEOUT_S}
        if server == "python":
            body |= {"tool": "run_python_code", "arguments": {"code_block": "print(1)"}}
        elif server == "browser":
            body |= {"tool": "browser_navigate", "arguments": {"url": page}}
        answer = await client.post(f"/v1/tasks/{name}/calls", json=body)
        if not task:
            await client.delete(f"/v1/tasks/{name}")
    except httpx2.HTTPError:
        return False
    if task and answer.status_code in (404, 410):
        return None
    if answer.status_code != 200 or answer.json()["result"].get("isError"):
        return False
    text = answer.json()["result"]["content"][0]["text"]
    expected = {"python": "stdout: ['1", "browser": PAGE}.get(server)
    return text == key if expected is None else expected in text


async def strike(targets: FaultTargets, kind: str) -> Json:
    """Cause one fault. Wait until the next call to its target is answered."""
    began = time.monotonic()
    entry: Json = {"kind": kind, "what": "", "recovered_ms": None, "problem": ""}
    try:
        struck = await KINDS[kind](targets)
    except NothingToStrike as exc:
        return {**entry, "problem": f"left out: {exc}"}
    except Exception as exc:
        return {**entry, "problem": f"{type(exc).__name__}: {exc}"}
    entry |= {"what": struck.what, "struck_s": time.monotonic() - began}
    while time.monotonic() - struck.since < RECOVERED_WITHIN_S:
        async with targets.client() as client:
            answered = await answered_by(client, targets.key(), struck.server, struck.task, targets.page)
        if answered is None:
            return {**entry, "problem": "left out: its task ended first"}
        if answered:
            return {**entry, "recovered_ms": (time.monotonic() - struck.since) * 1e3}
        await anyio.sleep(_PROBE_S)
    return {**entry, "problem": f"no answer within {RECOVERED_WITHIN_S:g} s"}
