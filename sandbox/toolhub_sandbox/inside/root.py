"""The file tree that all sandboxes of a zygote share: read-only, and without anything of the host but the system.

The zygote moves into it before it loads or forks anything, so no process of a sandbox ever had a way to the host's
files. What each sandbox must have for itself (`OWN`) is mounted over empty folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from toolhub_sandbox.inside import syscalls
from toolhub_sandbox.inside.syscalls import (
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

OWN = ("/home/user", "/tmp", "/dev/shm", "/proc")  # noqa: S108 - inside the sandbox
SYSTEM = ("/usr", "/nix/store")
# Links into /usr on most systems, folders on others.
MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = (
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
FOR_THE_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/gai.conf")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Where the new tree is built before it becomes the root; any folder will do, for nothing below these is shown inside.
_BUILDING_SITES = ("/sys", "/mnt", "/media", "/boot")
FILES = {
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
    root = next(site for site in _BUILDING_SITES if os.path.isdir(site))
    syscalls.mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    os.umask(0o022)
    for folder in OWN:
        os.makedirs(root + folder, exist_ok=True)
    # For what a module writes while it is loaded; each sandbox has its own over it.
    syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=1777")  # noqa: S108
    for path in _outermost([*SYSTEM, *folders]):
        _show(root, path)
    for path in MERGED:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        else:
            _show(root, path)
    for path in (*CONFIGURATION, *(FOR_THE_NETWORK if host_network else ())):
        _show(root, path)
    for path, text in FILES.items():
        if not os.path.exists(root + path):
            with open(root + path, "w") as file:
                file.write(text)
    _add_devices(root)
    # Of this pid namespace; sandboxes may only mount one of their own while they can see one.
    syscalls.mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    syscalls.pivot_root(root)
    syscalls.set_mount_attributes("/", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, recursive=False)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Leave out what lies in another of the paths."""
    kept: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths} | set(paths), key=len):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(path)
    return kept


def _show(root: str, path: str) -> None:
    """Bind a file or folder of the host, read-only, to the same path; nothing if it is not there."""
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
