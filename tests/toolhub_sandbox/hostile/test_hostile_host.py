"""What of the host and of others can be seen from a sandbox: nothing but the system's programs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.toolhub_sandbox.hostile.hostile_hub import SECRET, hub_process
from tests.toolhub_sandbox.hostile.hostile_stage import HostileStage, patience, processes, tried, value

pytestmark = pytest.mark.anyio


async def test_a_service_on_the_hosts_loopback_cannot_be_reached(stage: HostileStage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("::1", 0), family=10) as second:
        listener.setblocking(False)
        second.setblocking(False)
        ports = listener.getsockname()[1], second.getsockname()[1]
        with patience():
            told = await tried(
                stage.box,
                f"""
hosts = [("127.0.0.1", {ports[0]}), ("localhost", {ports[0]}), ("0.0.0.0", {ports[0]}), ("::1", {ports[1]})]
[attempt(socket.create_connection, host, 3) for host in hosts]
""",
            )
        assert set(told) == {"ECONNREFUSED"}
        for each in (listener, second):
            with pytest.raises(BlockingIOError):
                each.accept()


async def test_unix_sockets_of_the_host_cannot_be_reached(stage: HostileStage, tmp_path: Path) -> None:
    names = [f"\0hostile-{os.getpid()}", str(tmp_path / "s")]
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        for listener, name in zip((abstract, named), names, strict=True):
            listener.bind(name)
            listener.listen()
            listener.setblocking(False)
        with patience():
            told = await tried(stage.box, f"[attempt(socket.socket(socket.AF_UNIX).connect, name) for name in {names}]")
        assert told == ["ECONNREFUSED", "ENOENT"]
        for listener in (abstract, named):
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_there_is_no_network_and_no_name(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
def resolve():
    try:
        return socket.getaddrinfo("example.org", 80)
    except socket.gaierror:
        return "no name"
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
[attempt(socket.create_connection, ("192.0.2.1", 80), 3), attempt(udp.sendto, b"x", ("192.0.2.1", 53)),
 attempt(udp.sendto, b"x", ("169.254.169.254", 80)), resolve(), attempt(os.stat, "/etc/resolv.conf")]
""",
        )
    assert told == ["ENETUNREACH", "ENETUNREACH", "ENETUNREACH", "no name", "ENOENT"]


async def test_folders_of_the_host_cannot_be_seen(stage: HostileStage, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    hidden = [str(tmp_path), str(Path(__file__).parent), "/var", "/run", "/opt", "/srv", "/mnt", "/boot"]
    hidden += ["/etc/shadow", "/etc/ssh", "/etc/hostname", "/etc/machine-id", "/etc/fstab", "/sys", "/lost+found"]
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    with patience():
        told = await tried(
            stage.box, f"[path for path in {hidden} if os.path.lexists(path) and os.path.realpath(path)]"
        )
        top = await value(stage.box, "sorted(os.listdir('/'))")
        homes = await value(stage.box, "os.listdir('/home')")
    # An interpreter of the project shows the folders above itself, empty but for it.
    assert [path for path in told if not any(prefix.startswith(path + "/") for prefix in prefixes)] == []
    allowed = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "dev", "tmp", "home", "nix"}
    assert set(top) <= allowed | {prefix.split("/")[1] for prefix in prefixes}
    assert set(homes) <= {"user"} | {prefix.split("/")[2] for prefix in prefixes if prefix.startswith("/home/")}


async def test_folders_above_the_interpreter_show_nothing_else(stage: HostileStage) -> None:
    prefixes = sorted({sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)} - {"/usr", "/usr/local"})
    with patience():
        for prefix in prefixes:
            above = Path(prefix).parent
            while above != Path("/"):
                seen = set(await value(stage.box, f"import os; os.listdir({str(above)!r})"))
                below = {
                    Path(other).relative_to(above).parts[0] for other in prefixes if Path(other).is_relative_to(above)
                }
                below -= {"."}
                if above == Path("/home"):
                    below.add("user")
                assert seen <= below | set(), above
                above = above.parent


async def test_the_whole_tree_but_its_own_folders_is_read_only(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command(
            "find / -xdev -writable -not -type l -not -path '/proc/*' 2>/dev/null | head; "
            "for d in / /etc /usr /usr/lib /home /dev /root; do touch $d/evil 2>/dev/null && echo $d; done; true"
        )
        mounts = await value(stage.box, "[line.split()[1:4] for line in open('/proc/self/mounts')]")
    own = ("/home/user", "/tmp", "/dev/shm", *(f"/dev/{name}" for name in DEVICES))
    assert [path for path in done.stdout.split() if not path.startswith(own)] == []
    writable = {place for place, kind, flags in mounts if "rw" in flags.split(",")}
    assert writable <= {"/home/user", "/tmp", "/dev/shm", "/proc"} | {f"/dev/{name}" for name in DEVICES}


DEVICES = ("null", "zero", "full", "random", "urandom")


async def test_other_sandboxes_cannot_be_seen(stage: HostileStage) -> None:
    mark = """
import ctypes, os
libc = ctypes.CDLL(None)
queue = libc.msgget(4711, 0o1666)
open("/dev/shm/secret", "w").close(); open("/tmp/secret", "w").close(); open("/home/user/secret", "w").close()
"""
    with patience():
        await stage.neighbour.exec_code(mark)
        assert await value(stage.neighbour, "queue >= 0") is stage.has_cgroup  # without, there are no queues
        told = await tried(
            stage.box,
            """
queue = libc.msgget(4711, 0)
found = [path for path in ("/dev/shm/secret", "/tmp/secret", "/home/user/secret") if os.path.exists(path)]
pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
queue, found, sorted(pids)
""",
        )
        await stage.neighbour.exec_code("import os; libc.msgctl(queue, 0, None); os.remove('/home/user/secret')")
    assert told == (-1, [], [1, 2])


async def test_no_process_but_its_own_can_be_signalled(stage: HostileStage) -> None:
    others = sorted(process.pid for process in processes()) + [os.getpid(), os.getppid()]
    with patience():
        told = await tried(
            stage.box,
            f"""
own = (1, os.getpid())
everyone = set(range(3, 70000)) | set({others})
[pid for pid in everyone if pid not in own and attempt(os.kill, pid, 0) != "ESRCH"]
""",
        )
    assert told == []


async def test_its_own_identity_is_all_it_knows(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
import getpass, platform
(os.getuid(), getpass.getuser(), platform.node(), os.environ.get("HOME"), os.getcwd(),
 sorted(set(os.environ) - {"PATH", "PYTHONPATH", "PIP_TARGET", "MPLBACKEND", "MPLCONFIGDIR"}))
""",
        )
    names = ["HOME", "LANG", "LOGNAME", "SHELL", "TERM", "USER"]
    assert told == (1000, "user", "sandbox", "/home/user", "/home/user", names)


# The pattern does not match itself, so it is found only where somebody else has put it.
SEARCH = f"""
import os, re
secret = re.compile(rb"[{SECRET[0]}]{SECRET[1:8]}-[0-9a-f]{{16}}")

def memory():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as mem:
        for line in maps:
            start, end = (int(text, 16) for text in line.split()[0].split("-"))
            if line.split()[1][0] == "r" and end - start < 256 << 20 and "[v" not in line:
                try:
                    mem.seek(start)
                    data = mem.read(end - start)
                except (OSError, ValueError):
                    continue
                yield line, data

def files():
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in SKIPPED]
        for name in names:
            path = os.path.join(folder, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                yield path, os.read(fd, 1 << 20)
            except OSError:
                pass
            finally:
                os.close(fd)

SKIPPED = {{"/usr", "/dev", "/proc/self/task", *{sorted({os.path.realpath(sys.prefix), sys.prefix, sys.base_prefix})}}}
looked = [0, 0]
found = []
for at, source in enumerate((memory, files)):
    for where, data in source():
        looked[at] += len(data)
        if secret.search(data):
            found.append(where)
found += [key for key, text in os.environ.items() if secret.search(text.encode())]
found, looked[0] > 1 << 20, looked[1] > 1 << 16
"""


async def test_a_secret_of_the_hub_is_nowhere_to_be_found() -> None:
    """A process of its own, that has it in its environment, its arguments, its memory and an open file."""
    with patience():
        async with hub_process(sandboxes=1, code=SEARCH) as hub:
            assert hub.told["results"] == ["([], True, True)"], hub.told
            own = Path(f"/proc/{hub.process.pid}/environ").read_bytes()
            assert SECRET.encode()[:8] in own
            for process in hub.all:  # launcher, zygote and sandboxes, as the host sees them
                try:
                    text = b"".join(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
                except PermissionError:
                    continue
                assert SECRET.encode()[:8] not in text
