"""What code in a sandbox may ask of the kernel: what ordinary programs need, and nothing else."""

from __future__ import annotations

import platform
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from toolhub_sandbox.inside import seccomp

from tests.toolhub_sandbox.hostile.hostile_stage import TRIES, HostileStage, patience, tried, value

pytestmark = pytest.mark.anyio

X86 = platform.machine() == "x86_64"
COLUMN = 0 if X86 else 1
CLONE = seccomp._CLONE[COLUMN]
NUMBERS = {name: numbers[COLUMN] for name, numbers in seccomp.DENIED.items() if numbers[COLUMN] is not None}
# Younger than the headers of current distributions: arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.15.
YOUNG = {"open_tree_attr": 467}
HEADERS = {
    0: ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    1: ("/usr/include/asm-generic/unistd.h",),
}


def numbers_in(header: str) -> dict[str, int]:
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(header).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("column", [0, 1], ids=["x86_64", "aarch64"])
def test_the_numbers_are_those_of_the_kernels_headers(column: int) -> None:
    header = next((path for path in HEADERS[column] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers are not installed: {HEADERS[column]}")
    real = numbers_in(header) | YOUNG
    table: dict[str, Any] = seccomp.DENIED | seccomp.UNCOUNTED | seccomp.EPOLL
    named = {"clone": seccomp._CLONE, "clone3": seccomp._CLONE3, "socket": seccomp._SOCKET}
    named |= {"prlimit64": seccomp._PRLIMIT, "ioctl": seccomp._IOCTL, "setsockopt": seccomp._SETSOCKOPT}
    wrong = {name: numbers[column] for name, numbers in (table | named).items() if real.get(name) != numbers[column]}
    assert wrong == {}


async def test_every_denied_call_is_denied(stage: HostileStage) -> None:
    with patience():
        told = await tried(stage.box, f"{{name: call(number, 0, 0, 0, 0, 0, 0) for name, number in {NUMBERS}.items()}}")
    allowed = {name: outcome for name, outcome in told.items() if outcome not in ("EPERM", "ENOSYS")}
    assert len(told) > 50 and allowed == {}


async def test_a_denied_call_is_denied_whatever_its_arguments(stage: HostileStage) -> None:
    """High bits of the number are cut off by the kernel, or must be."""
    code = f"""
import random
random.seed(1)
def arguments():
    return [random.choice([0, 1, -1, 2**31, 2**63 - 1]) for _ in range(6)]
[(name, outcome) for name, number in {NUMBERS}.items() for _ in range(20)
 if (outcome := call(number, *arguments())) not in ("EPERM", "ENOSYS")]
"""
    with patience():
        assert await tried(stage.box, code) == []


ATTACKS = {
    "mount": 'libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)',
    "umount": 'libc.umount2(b"/proc", 2)',
    "remount": 'libc.mount(b"", b"/usr", None, 32 | 4096, None)',
    "unshare user": "libc.unshare(0x10000000)",
    "unshare mount": "libc.unshare(0x20000)",
    "unshare net": "libc.unshare(0x40000000)",
    "clone user": f"libc.syscall({CLONE}, 0x10000000 | 17, None, None, None, None)",
    "clone net": f"libc.syscall({CLONE}, 0x40000000 | 17, None, None, None, None)",
    "clone with high bits": f"libc.syscall({CLONE}, ctypes.c_long((1 << 40) | 0x10000000 | 17), 0, 0, 0, 0)",
    "clone3": "libc.syscall(435, ctypes.create_string_buffer(88), 88)",
    "setns": 'libc.setns(os.open("/proc/self/ns/net", 0), 0)',
    "chroot": 'libc.chroot(b"/tmp")',
    "ptrace me": "libc.ptrace(0, 0, 0, 0)",
    "ptrace 1": "libc.ptrace(16, 1, 0, 0)",
    "reboot": "libc.reboot(0x1234567)",
    "time": "libc.settimeofday(ctypes.create_string_buffer(16), None)",
    "clock": "libc.clock_settime(0, ctypes.create_string_buffer(16))",
    "hostname": 'libc.sethostname(b"evil", 4)',
    "domain": 'libc.setdomainname(b"evil", 4)',
    "swap": 'libc.swapon(b"/tmp/x", 0)',
    "root": "libc.setuid(0)",
    "another user": "libc.setresuid(1001, 1001, 1001)",
    "another group": "libc.setresgid(0, 0, 0)",
    "groups": "libc.setgroups(1, ctypes.create_string_buffer(4))",
    "limits of the first process": "libc.prlimit(1, 7, ctypes.create_string_buffer(16), None)",
    "limits, read": "libc.prlimit(1, 7, None, ctypes.create_string_buffer(16))",
    "own limits, raised": "libc.prlimit(0, 7, ctypes.create_string_buffer(b'\\xff' * 8 * 2, 16), None)",
    "processes, raised": "libc.setrlimit(6, ctypes.create_string_buffer(b'\\xff' * 16, 16))",
    "nice": "libc.setpriority(0, 0, -20)",
    "real time": "libc.sched_setscheduler(0, 1, ctypes.create_string_buffer(struct.pack('i', 50), 4))",
    "pidfd_getfd": "libc.syscall(438, libc.syscall(434, 1, 0), 3, 0)",
    "memory of 1": "libc.process_vm_readv(1, None, 0, None, 0, 0)",
    "device node": 'libc.mknod(b"/tmp/sda", 0o60600, 0x800)',
    "console": "libc.syscall(103, 3, None, 0)" if X86 else "libc.syscall(116, 3, None, 0)",
    "io_uring": "libc.syscall(425, 8, ctypes.create_string_buffer(120))",
    "lock memory": "libc.mlockall(3)",
    "locked memory": "libc.mlock(ctypes.create_string_buffer(16 << 20), 16 << 20)",
    "capabilities": "libc.prctl(24, 0, 0, 0, 0)",
    "ambient": "libc.prctl(47, 2, 21, 0, 0)",
    "no new privileges, undone": "libc.prctl(38, 0, 0, 0, 0)",
    "seccomp, undone": "libc.prctl(22, 0, 0, 0, 0)",
    "securebits": "libc.prctl(28, 0x2f, 0, 0, 0)",
    "user's file": 'libc.chown(b"/home/user", 0, 0)',
    "keyring": f"libc.syscall({250 if X86 else 219}, 0, -4, 1)",
}


async def test_privileges_cannot_be_had(stage: HostileStage) -> None:
    """Through libc, as programs do."""
    code = "".join(
        f"told[{name!r}] = errno.errorcode[ctypes.get_errno()] if ({attack}) == -1 else 'done'\n"
        for name, attack in ATTACKS.items()
    )
    with patience():
        told = await tried(stage.box, f"told = {{}}\n{code}told")
    refusals = {"EPERM", "ENOSYS", "EINVAL", "EACCES", "ENOMEM"}
    assert {name: outcome for name, outcome in told.items() if outcome not in refusals} == {}


@pytest.mark.skipif(not X86, reason="machine code of x86")
@pytest.mark.parametrize(
    "machine_code",
    [
        "b8 14 00 00 00 cd 80 c3",  # getpid of the 32-bit table, by int 0x80: its numbers mean other calls
        "b8 15 00 00 00 31 db cd 80 c3",  # mount
    ],
)
async def test_another_table_of_numbers_ends_the_process(stage: HostileStage, machine_code: str) -> None:
    code = f"""
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("{machine_code}"))
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    with patience():
        done = await stage.box.exec_code(TRIES + code)
        assert done.error is not None and "SIGSYS" in done.error.value
        assert await value(stage.box, "1 + 1") == 2


@pytest.mark.skipif(not X86, reason="a table of x86")
async def test_the_x32_table_is_missing(stage: HostileStage) -> None:
    with patience():
        told = await tried(stage.box, "[call(0x40000000 + number, 0, 0, 0) for number in range(600)]")
    assert set(told) == {"ENOSYS"}


async def test_only_families_that_are_namespaced_can_be_opened(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
allowed = set()
for family in range(64):
    for kind in (1, 2, 3, 4, 5, 10):
        opened = attempt(socket.socket, family, kind)
        if isinstance(opened, socket.socket):
            allowed.add(family)
            opened.close()
sorted(allowed), attempt(socket.socket, 40, 1), attempt(socket.socket, 17, 3), attempt(socket.socket, 38, 5)
""",
        )
    assert told[0] == sorted([socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK])
    assert told[1:] == ("EAFNOSUPPORT",) * 3


async def test_raw_sockets_and_the_own_network_cannot_be_used_as_root_would(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
import fcntl
any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
down = struct.pack("16sh14x", b"lo", 0)
[attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1), attempt(fcntl.ioctl, any_socket, 0x8914, down),
 attempt(socket.socket(socket.AF_INET).bind, ("127.0.0.1", 80))]
""",
        )
    assert told == ["EPERM", "EPERM", "EACCES"]


async def test_terminals_take_no_forged_input(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
import fcntl
told = [attempt(fcntl.ioctl, fd, request, b"x") for fd in (0, 1) for request in (0x5412, 0x541C)]
told + [attempt(os.open, "/dev/tty", 2), attempt(os.open, "/dev/ptmx", 2)]
""",
        )
    assert told == ["EPERM"] * 4 + ["ENOENT"] * 2


async def test_there_is_no_capability_and_no_way_to_one(stage: HostileStage) -> None:
    with patience():
        status = await value(
            stage.box, "dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())"
        )
        shell = await stage.box.run_command("grep -E '^(Cap|NoNew|Seccomp:|Uid|Gid)' /proc/self/status")
    for told in (status, dict(line.split(":\t", 1) for line in shell.stdout.splitlines())):
        capabilities = {key: text for key, text in told.items() if key.startswith("Cap")}
        assert len(capabilities) == 5 and {int(text, 16) for text in capabilities.values()} == {0}
        assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
        assert told["Uid"].split() == told["Gid"].split() == ["1000"] * 4


async def test_setuid_programs_give_nothing(stage: HostileStage) -> None:
    commands = {
        "su -c id": "",
        "mount -t tmpfs none /tmp": "",
        "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id -u": "1000",
        "newgrp root -c id": "",
        "unshare -Ur id -u": "",
        "find / -xdev -perm /6000 -type f -newer /proc/1 2>/dev/null": "",
    }
    with patience():
        for command, expected in commands.items():
            done = await stage.box.run_command(f"{command} </dev/null", timeout=10)
            assert done.stdout.strip() == expected, done


async def test_programs_from_tmp_run_but_gain_nothing(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command(
            "for d in /tmp /home/user /dev/shm; do "
            "cp /bin/true $d/t && chmod 4755 $d/t && ln $d/t $d/hard && $d/hard && echo ran; done"
        )
        flags = await stage.box.run_command(
            "grep -vc nosuid /proc/self/mounts; ln /etc/passwd /tmp/hard; ln /usr/bin/su /home/user/su"
        )
    assert done.stdout == "ran\n" * 3
    assert flags.stdout == "0\n" and flags.stderr.count("failed to create hard link") == 2


READS = [
    "/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/smaps", "/proc/1/pagemap", "/proc/1/auxv", "/proc/1/io",
    "/proc/1/stack", "/proc/1/syscall", "/proc/1/personality", "/proc/1/task/1/mem", "/proc/1/task/1/environ",
    "/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/slabinfo", "/dev/mem", "/dev/kmsg",
    "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda", "/sys/kernel/security", "/sys/fs/cgroup",
    "/sys/firmware", "/sys/kernel/debug", "/dev/vsock", "/dev/console", "/dev/tty",
]  # fmt: skip
WRITES = [
    "/proc/1/mem", "/proc/1/oom_score_adj", "/proc/1/oom_adj", "/proc/1/clear_refs", "/proc/1/attr/current",
    "/proc/1/uid_map", "/proc/1/gid_map", "/proc/1/setgroups", "/proc/1/comm", "/proc/1/coredump_filter",
    "/proc/1/timerslack_ns", "/proc/1/autogroup", "/proc/1/task/1/comm",
    "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups", "/proc/self/loginuid",
    "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches",
    "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/shmmax", "/proc/sys/kernel/sem", "/proc/sys/fs/mqueue/msg_max",
    "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/user/max_user_namespaces",
    "/proc/irq/0/smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup", "/etc/passwd", "/usr/bin/env", "/bin/sh",
    "/dev/null/x", "/proc/sys/fs/binfmt_misc/register", "/proc/scsi/scsi", "/proc/timer_list",
]  # fmt: skip


async def test_the_first_process_and_the_kernel_cannot_be_read(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            f"""
def read(path):
    with open(path, "rb") as file:
        return len(file.read(64))
{{path: attempt(read, path) for path in {READS}}}
""",
        )
    refused = {"EACCES", "EPERM", "ENOENT", "EIO", "EISDIR"}
    assert {path: outcome for path, outcome in told.items() if outcome not in refused} == {}


async def test_nothing_of_the_kernel_and_the_system_can_be_written(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            f"""
def write(path):
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, b"0")
    finally:
        os.close(fd)
{{path: attempt(write, path) for path in {WRITES}}}
""",
        )
    refused = {"EACCES", "EPERM", "ENOENT", "EROFS", "EIO", "EINVAL", "ENOTDIR"}
    assert {path: outcome for path, outcome in told.items() if outcome not in refused} == {}


@pytest.mark.parametrize("link", ["cwd", "root", "exe", "fd/0", "fd/3", "ns/net", "ns/user", "map_files"])
async def test_links_of_the_first_process_lead_nowhere(stage: HostileStage, link: str) -> None:
    path = f"/proc/1/{link}"
    code = f"attempt(os.readlink, '{path}'), attempt(os.open, '{path}', 0), attempt(os.stat, '{path}/etc/shadow')"
    with patience():
        told = await tried(stage.box, code)
    assert set(told) <= {"EACCES", "EPERM", "ENOENT", "EINVAL", "ENOTDIR"}


async def test_a_shim_of_a_command_can_be_read_no_more_than_the_agent(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command(
            "cat /proc/$PPID/environ /proc/$PPID/maps; ls /proc/$PPID/fd; ls -l /proc/$PPID/cwd/"
        )
    assert done.stdout == "" and done.stderr.count("Permission denied") == 4


async def test_an_own_oom_score_can_only_get_worse(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
def set_score(score):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
attempt(set_score, -1000), attempt(set_score, 1000)
""",
        )
        shell = await stage.box.run_command("cat /proc/self/oom_score_adj")
    assert told[0] == "EACCES" and told[1] is None
    assert shell.stdout == "500\n"


async def test_what_the_kernel_counts_for_an_account_is_bounded_for_each_sandbox(stage: HostileStage) -> None:
    with patience():
        told = await tried(
            stage.box,
            """
import resource
names = [name for name in os.listdir("/proc/sys/user") if name.endswith("_namespaces")]
({open(f"/proc/sys/user/{name}").read().strip() for name in names},
 attempt(open, "/proc/sys/user/max_user_namespaces", "w"), resource.getrlimit(resource.RLIMIT_SIGPENDING),
 resource.getrlimit(resource.RLIMIT_MSGQUEUE))
""",
        )
    assert told == ({"0"}, "EACCES", (1024, 1024), (0, 0))


async def test_files_that_all_sandboxes_share_cannot_be_watched(stage: HostileStage) -> None:
    """A watch on a program would tell a sandbox whenever another one runs it."""
    code = """
told = []
for start in (libc.inotify_init, lambda: libc.inotify_init1(0), lambda: libc.fanotify_init(0, 0)):
    told.append((start(), errno.errorcode[ctypes.get_errno()]))
told, open("/proc/sys/user/max_inotify_instances").read().strip()
"""
    with patience():
        told, most = await tried(stage.box, code)
    assert {result for result, _ in told} == {-1}
    assert {why for _, why in told} <= {"ENOSYS", "EPERM"}
    assert most == "0"


async def test_a_program_that_would_watch_a_file_reads_it_again_and_again_instead(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command(
            "touch f; (until echo more >> f && test -e seen; do :; done) & tail -f -s 0.05 f | head -n 1; touch seen"
        )
    assert done.stdout == "more\n"


async def test_asynchronous_io_of_the_whole_machine_cannot_be_reserved(stage: HostileStage) -> None:
    """fs.aio-max-nr is one number for everybody."""
    number = {"x86_64": 206, "aarch64": 0}[platform.machine()]
    before = Path("/proc/sys/fs/aio-nr").read_text()
    with patience():
        told = await tried(stage.box, f"context = ctypes.c_ulong(0)\ncall({number}, 65536, ctypes.byref(context))")
    assert told == "ENOSYS"
    assert Path("/proc/sys/fs/aio-nr").read_text() == before
