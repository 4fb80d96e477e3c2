"""What a sandbox is made of: its namespaces, file tree, limits and environment.

The second half builds the file tree that all sandboxes of a zygote share. It is read-only and has nothing of the host
but the system. The zygote moves into it before it loads or forks anything, so no process of a sandbox ever has a way
to the host's files. What each sandbox must have for itself (`PRIVATE_MOUNTS`) is mounted over empty folders.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import selectors
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

from toolhub_sandbox.inside import seccomp, syscalls
from toolhub_sandbox.inside.agent import SandboxOptions
from toolhub_sandbox.inside.display import MATPLOTLIB_BACKEND
from toolhub_sandbox.inside.processes import raise_oom_score
from toolhub_sandbox.inside.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
)

UID = 1000
MAX_FILES = 4096
# Enough for any unpacked package. Each file costs about 1 KiB of kernel memory, however small it is.
_INODES, INODE_BYTES = 100_000, 1 << 10
# Without a cgroup: one file for this many bytes, so that empty files cost at most a quarter of what full ones do.
_BYTES_PER_INODE = 4 * INODE_BYTES
FILE_SYSTEMS = ("/home/user", "/tmp", "/dev/shm")  # noqa: S108 - those of the sandbox
# Smallest, first and largest TCP buffer where only the number of sockets is bounded (`resource_watch.SOCKET_BYTES`).
_TCP_BUFFER = "4096 65536 131072"
# Only attacks make namespaces in a sandbox, or watch files that all sandboxes share.
_NAMESPACE_LIMITS = dict.fromkeys(
    [f"{kind}_namespaces" for kind in ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time")]
    + ["inotify_instances", "fanotify_groups"],
    0,
)
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 1 | 64


def unshare(*, network: bool) -> None:
    """Enter new namespaces. The next fork is process 1 of the new pid namespace. network: keep the host's."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    syscalls.unshare(flags | (0 if network else CLONE_NEWNET))
    map_ids({UID: uid}, {UID: gid})


def map_ids(uids: Mapping[int, int], gids: Mapping[int, int]) -> None:
    """Map one uid and gid of a new user namespace (key) to the parent's (value)."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", "".join(f"{inside} {outside} 1\n" for inside, outside in uids.items())),
        ("gid_map", "".join(f"{inside} {outside} 1\n" for inside, outside in gids.items())),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_private(options: SandboxOptions, folders: Sequence[str]) -> None:
    """Give this sandbox its own home, /tmp, /dev/shm and /proc. Those of `folders` that lie below stay visible."""
    covered = {
        folder: os.open(folder, os.O_PATH)
        for folder in folders
        if folder.startswith(tuple(f"{own}/" for own in PRIVATE_MOUNTS)) and os.path.isdir(folder)
    }
    flags = MS_NOSUID | MS_NODEV
    sizes = options.home_bytes, options.tmp_bytes, options.shm_bytes
    modes = f"mode=755,uid={UID},gid={UID}", "mode=1777", "mode=1777"
    for folder, size, mode in zip(FILE_SYSTEMS, sizes, modes, strict=True):
        inodes = _INODES if options.memory_bytes is None else min(_INODES, 64 + size // _BYTES_PER_INODE)
        syscalls.mount("tmpfs", folder, "tmpfs", flags, f"size={size},nr_inodes={inodes},{mode}")
    syscalls.mount("proc", "/proc", "proc", flags | MS_NOEXEC)
    for folder, descriptor in covered.items():
        os.makedirs(folder, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{descriptor}", folder, flags=MS_BIND | MS_REC)
        os.close(descriptor)


def limit_namespace() -> None:
    """Forbid what the kernel counts per user namespace: new namespaces, inotify and fanotify."""
    for name, most in _NAMESPACE_LIMITS.items():
        try:
            with open(f"/proc/sys/user/max_{name}", "w") as file:
                file.write(str(most))
        except OSError:
            pass  # an older kernel; seccomp denies these calls, too


def limit_sockets() -> None:
    """Bound the buffers of TCP sockets in this network namespace: without a cgroup nothing counts them."""
    for name in ("tcp_rmem", "tcp_wmem"):
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(_TCP_BUFFER)


def bring_up_loopback() -> None:
    """Switch the network namespace's only interface on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def listen_for_proxy(port: int) -> socket.socket:
    """Return a listening socket: programs inside connect to it, the hub accepts from it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def drop_privileges(options: SandboxOptions) -> None:
    """Give up every privilege for good. None of the model's code has run yet."""
    syscalls.new_session_keyring()
    syscalls.drop_capabilities()
    set_limits(options)
    # So that code with the same uid can neither read nor change the agent's memory.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    if seccomp.is_supported():
        program = seccomp.build(has_cgroup=options.memory_bytes is None, has_own_uid=options.uid is not None)
        syscalls.install_filter(program)


def set_limits(options: SandboxOptions, *, threads_before: int = 0) -> None:
    """Bounds that the kernel checks per process, and for processes per user namespace (Linux 5.14).

    threads_before: threads that count towards the limit already, in the hub's own namespace.
    """
    limits = {
        resource.RLIMIT_CORE: 0,
        # One byte more than any file system holds, so that a full one fails with ENOSPC.
        resource.RLIMIT_FSIZE: max(options.home_bytes, options.tmp_bytes, options.shm_bytes) + 1,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
    }
    if options.processes is not None:
        limits[resource.RLIMIT_NPROC] = options.processes + threads_before
    if options.memory_bytes is not None:
        limits[resource.RLIMIT_DATA] = options.memory_bytes
    for limit, value in limits.items():
        _lower(limit, value)


def limit_agent_files() -> None:
    """Bound the open files of the agent and of what it starts. Call it after the handshake.

    The kernel counts descriptors in flight (sent in a message, not yet received) for all processes of a uid together.
    A process cannot send more while there are more of them than files that this process may open (unix(7),
    ETOOMANYREFS). With half the limit, code in one sandbox cannot keep the next one from its handshake. Half, because
    each processor may have one more message (253 files) in flight.
    """
    own, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    _lower(resource.RLIMIT_NOFILE, min(MAX_FILES, own // 2))


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (wanted, wanted))


def environment(options: SandboxOptions) -> dict[str, str]:
    """Return the whole environment of a sandbox."""
    home = options.home
    library = f"{home}/.local/lib/python"
    folders = [f"{sys.prefix}/bin", f"{home}/.local/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    found = {
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "LANG": "C.UTF-8",
        "PATH": ":".join(dict.fromkeys(folders)),
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        # The interpreter's own packages are read-only; what pip installs goes where imports find it.
        "PIP_TARGET": library,
        "PYTHONPATH": library,
        "MPLBACKEND": MATPLOTLIB_BACKEND,
        "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108
    }
    if options.proxy_port:
        proxy = f"http://127.0.0.1:{options.proxy_port}"
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found[name] = found[name.upper()] = proxy
        found["no_proxy"] = found["NO_PROXY"] = "localhost,127.0.0.1"
    return found | options.env


def limit_code_files(options: SandboxOptions) -> None:
    """Bound the open files of each process that runs the model's code. The agent may open more: it reads for all."""
    _lower(resource.RLIMIT_NOFILE, options.files)


def become_worker(options: SandboxOptions) -> None:
    """Prepare the forked worker: its limits, its modules, and a high score for the kernel's OOM killer."""
    syscalls.set_name("python")
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    raise_oom_score()
    limit_code_files(options)
    _use_poll_without_epoll()
    sys.path.insert(0, "")  # modules beside the code, as in any interactive session
    library = os.environ.get("PYTHONPATH")
    if library:
        sys.path.append(library)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # otherwise every sandbox would draw the same numbers


def _use_poll_without_epoll() -> None:
    """Choose asyncio's selector again: the zygote chose before the seccomp filter was installed."""
    try:
        select.epoll().close()
    except OSError:
        selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]  # as `selectors` itself does


# --- the file tree ----------------------------------------------------------------------------------------------------

PRIVATE_MOUNTS = ("/home/user", "/tmp", "/dev/shm", "/proc")  # noqa: S108 - inside the sandbox
SYSTEM_FOLDERS = ("/usr", "/nix/store")
# Links into /usr on most systems, folders on others.
USR_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIG_FILES = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/tls",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/gai.conf")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Where the new tree is built before it becomes the root. Any folder works: nothing below these is shown inside.
_STAGING_FOLDERS = ("/sys", "/mnt", "/media", "/boot")
GENERATED_FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    # Debian's own would replace PATH for login shells.
    "/etc/profile": "",
}


def enter_new_root(folders: Sequence[str], *, host_network: bool) -> None:
    """Build the tree with `folders` of the host in it, and make it the root. Needs a mount namespace of its own."""
    syscalls.mount("", "/", flags=MS_REC | MS_PRIVATE)
    root = next(site for site in _STAGING_FOLDERS if os.path.isdir(site))
    syscalls.mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    os.umask(0o022)
    for folder in PRIVATE_MOUNTS:
        os.makedirs(root + folder, exist_ok=True)
    # For files that modules write while they load. Each sandbox mounts its own over it.
    syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=1777")  # noqa: S108
    for path in _outermost([*SYSTEM_FOLDERS, *folders]):
        _bind_read_only(root, path)
    for path in USR_MERGED:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        else:
            _bind_read_only(root, path)
    for path in (*CONFIG_FILES, *(NETWORK_FILES if host_network else ())):
        _bind_read_only(root, path)
    for path, text in GENERATED_FILES.items():
        if not os.path.exists(root + path):
            with open(root + path, "w") as file:
                file.write(text)
    _add_devices(root)
    # The kernel lets sandboxes mount a /proc of their own only while they can see one.
    syscalls.mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    syscalls.pivot_root(root)
    syscalls.set_mount_attributes("/", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, recursive=False)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Leave out paths that lie in another one of them."""
    kept: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths} | set(paths), key=len):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(path)
    return kept


def _bind_read_only(root: str, path: str) -> None:
    """Bind a file or folder of the host, read-only, to the same path in the tree, if it exists."""
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif os.path.isfile(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    else:
        return
    syscalls.mount(path, target, flags=MS_BIND | MS_REC)
    syscalls.set_mount_attributes(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, recursive=True)


def _add_devices(root: str) -> None:
    for name in DEVICES:
        target = f"{root}/dev/{name}"
        with open(target, "w"):
            pass
        syscalls.mount(f"/dev/{name}", target, flags=MS_BIND)
        syscalls.set_mount_attributes(target, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, recursive=False)
    for name, there in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{there}", f"{root}/dev/{name}")
