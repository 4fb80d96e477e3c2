"""The system calls that a sandbox may not make, as a seccomp filter.

A list of what is denied, not of what is allowed: any Python package should work, and namespaces, missing capabilities
and limits do most of the work. Denied is what reaches parts of the kernel that ordinary programs never need.
Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

# name: (x86_64, aarch64); None where the machine does not have it.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
}
# Memory that is no process's and in no file system: only a cgroup sees it. Denied where there is none.
UNCOUNTED: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}
# The kernel counts what all epoll instances of a uid watch (fs.epoll.max_user_watches), and a filter cannot count.
# Denied where sandboxes share a uid: one of them could else keep the others, and a hub of that uid, from waiting.
EPOLL: dict[str, tuple[int | None, int | None]] = {"epoll_create": (213, None), "epoll_create1": (291, 20)}
# Starting programs and processes, for a process that works alone.
ALONE: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
}
# Programs fall back when the kernel seems too old for these, but not always when they are forbidden.
# inotify: a watch on a program in /usr tells who runs it, and all sandboxes share these files. `tail -f` polls then.
# io_setup: fs.aio-max-nr is one number for the whole machine.
_AS_IF_MISSING = frozenset(
    {"inotify_init", "inotify_init1", "io_setup", "io_uring_setup", "io_uring_enter", "io_uring_register"}
)
# Families that are namespaced. Not among them: vsock (reaches the hypervisor), alg, packet, bluetooth, ...
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}
_CLONE, _CLONE3, _SOCKET, _PRLIMIT, _IOCTL = (56, 220), (435, 435), (41, 198), (302, 261), (16, 29)
_SETSOCKOPT = (54, 208)
_NAMESPACE_FLAGS = 0x7E020080  # every CLONE_NEW*, time namespaces included
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_CLONE_THREAD = 0x10000
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# struct seccomp_data: nr, arch, instruction pointer, six 64-bit arguments (little-endian: low word first).
_NR, _ARCH, _ARGUMENT = 0, 4, 16


def is_supported() -> bool:
    """Whether the numbers of this machine are known."""
    return platform.machine() in _ARCHITECTURES


def build(*, has_cgroup: bool = True, has_own_uid: bool = True, is_alone: bool = False) -> bytes:
    """Return the filter for this machine.

    has_cgroup: whether a cgroup counts the kernel's memory. has_own_uid: whether no other process has this uid.
    is_alone: for a process that needs no network, no other programs and no other processes; it may start threads.
    """
    architecture, column = _ARCHITECTURES[platform.machine()]
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    if column == 0:
        code += _when(_AT_LEAST, _X32, errno.ENOSYS)
    missing = (() if has_cgroup else UNCOUNTED.values(), () if has_own_uid else EPOLL.values())
    denied = [(numbers, errno.ENOSYS) for group in missing for numbers in group]
    denied += [(known, errno.ENOSYS if name in _AS_IF_MISSING else errno.EPERM) for name, known in DENIED.items()]
    if is_alone:
        denied += [(numbers, errno.EPERM) for numbers in ALONE.values()]
    for numbers, answer in denied:
        number = numbers[column]
        if number is not None:
            code += _when(_EQUAL, number, answer)
    if is_alone:
        no_process = [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
        code += _in_call(_CLONE[column], 0, no_process)
    if not has_cgroup:
        code += _in_call(_SETSOCKOPT[column], 1, _WITHOUT_BUFFER_SIZES)
    # Its flags lie behind a pointer, where a filter cannot look; libraries then use clone.
    code += _when(_EQUAL, _CLONE3[column], errno.ENOSYS)
    code += _in_call(_CLONE[column], 0, _when(_ANY_BIT, _NAMESPACE_FLAGS, errno.EPERM))
    code += _in_call(_IOCTL[column], 1, _when(_EQUAL, _TIOCSTI, errno.EPERM) + _when(_EQUAL, _TIOCLINUX, errno.EPERM))
    # Own limits only: the agent has the same uid.
    code += _in_call(_PRLIMIT[column], 0, [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _ERRNO | errno.EPERM)])
    code += _in_call(_SOCKET[column], 0, _unless_one_of(() if is_alone else FAMILIES, errno.EAFNOSUPPORT))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in code)


_Step = tuple[int, int, int, int]

# SO_SNDBUF and SO_RCVBUF seem to succeed and do nothing: every socket keeps the default, and a number of sockets bounds
# what they hold (see `ResourceWatch`). The size is a wish that the kernel cuts down without a word, too.
_WITHOUT_BUFFER_SIZES: list[_Step] = [
    (_EQUAL, 0, 5, socket.SOL_SOCKET),
    (_LOAD, 0, 0, _ARGUMENT + 8 * 2),
    (_EQUAL, 0, 1, socket.SO_SNDBUF),
    (_RETURN, 0, 0, _ERRNO),
    (_EQUAL, 0, 1, socket.SO_RCVBUF),
    (_RETURN, 0, 0, _ERRNO),
]


def _when(test: int, value: int, code: int) -> list[_Step]:
    return [(test, 0, 1, value), (_RETURN, 0, 0, _ERRNO | code)]


def _unless_one_of(values: tuple[int, ...], code: int) -> list[_Step]:
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, _ERRNO | code)]


def _in_call(number: int, argument: int, steps: list[_Step]) -> list[_Step]:
    """Run `steps` on the low word of an argument of one call; a call that passes them is allowed."""
    load = (_LOAD, 0, 0, _ARGUMENT + 8 * argument)
    return [(_EQUAL, 0, len(steps) + 2, number), load, *steps, (_RETURN, 0, 0, _ALLOW)]
