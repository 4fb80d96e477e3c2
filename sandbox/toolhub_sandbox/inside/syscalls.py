"""The Linux calls that Python does not have, through ctypes. Each raises OSError with a text that names it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAP_KILL, CAP_SETGID, CAP_SETUID = 5, 6, 7
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_JOIN_SESSION_KEYRING = 1

_ARM = os.uname().machine in ("aarch64", "arm64")  # the `platform` module would remember the host's name
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = 41 if _ARM else 155
_SYS_KEYCTL = 219 if _ARM else 250

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    names = [text.encode() if text else None for text in (source, target, kind, data)]
    result = _libc.mount(names[0], names[1], names[2], ctypes.c_ulong(flags), names[3])
    _check(result, f"mount {kind or source} on {target or '/'}")


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Set MOUNT_ATTR_* flags, leaving those that are locked as they are. Linux 5.12."""
    wanted = _MountAttributes(attr_set=attributes)
    flags = _AT_RECURSIVE if recursive else 0
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, ctypes.byref(wanted), ctypes.sizeof(wanted)
    )
    _check(result, f"mount_setattr {target}")


def pivot_root(new: str) -> None:
    """Make `new` the root of this mount namespace, and the old one unreachable."""
    os.chdir(new)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), f"pivot_root {new}")
    # The old root now lies over the new one; see pivot_root(2), "pivot_root(".", ".")".
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def prctl(option: int, value: int = 0) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


def set_name(name: str) -> None:
    """What `ps` and `top` call this process."""
    _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def drop_capabilities(*, keep: Sequence[int] = ()) -> None:
    """Give up every capability but `keep` for this process, and all of them for whatever it will ever execute."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last one that this kernel knows, or none may be dropped because none is held
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    kept = sum(1 << capability for capability in keep)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept)), "capset")


def new_session_keyring() -> None:
    """Leave the hub's keyring behind; harmless where the kernel has none."""
    _libc.syscall(_SYS_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None)


def install_filter(program: bytes) -> None:
    """Install a seccomp filter; see `seccomp.py`."""
    buffer = ctypes.create_string_buffer(program, len(program))
    wanted = _Filter(len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(wanted), 0, 0), "seccomp")
