"""The filter as a program: every jump stays inside it, and it answers as its text says."""

from __future__ import annotations

import errno
import platform
import struct

import pytest
from toolhub_sandbox.inside import seccomp

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86, ARM = 0xC000003E, 0xC00000B7
LONGEST = 4096  # BPF_MAXINSNS

Step = tuple[int, int, int, int]


def program(monkeypatch: pytest.MonkeyPatch, machine: str, **options: bool) -> list[Step]:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert seccomp.is_supported()
    return list(struct.iter_unpack("<HBBI", seccomp.build(**options)))


def verdict(code: list[Step], number: int, *arguments: int, architecture: int = X86) -> int:
    """Run the program on one system call, as the kernel would."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, *[0] * (6 - len(arguments))))
    at = held = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
            continue
        found = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
        at += if_true if found else if_false


def refused(code: int) -> int:
    return ERRNO | code


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm64"])
@pytest.mark.parametrize("has_cgroup", [True, False])
@pytest.mark.parametrize("has_own_uid", [True, False])
def test_every_jump_lands_inside_and_the_end_is_a_verdict(
    monkeypatch: pytest.MonkeyPatch, machine: str, has_cgroup: bool, has_own_uid: bool
) -> None:
    code = program(monkeypatch, machine, has_cgroup=has_cgroup, has_own_uid=has_own_uid)
    assert 0 < len(code) <= LONGEST
    assert code[-1][0] == 0x06
    for at, (operation, if_true, if_false, _) in enumerate(code):
        assert operation in (0x20, 0x15, 0x35, 0x45, 0x06)
        if operation in (0x15, 0x35, 0x45):
            assert at + 1 + max(if_true, if_false) < len(code)


@pytest.mark.parametrize(("machine", "column", "architecture"), [("x86_64", 0, X86), ("aarch64", 1, ARM)])
def test_what_is_listed_is_denied(
    monkeypatch: pytest.MonkeyPatch, machine: str, column: int, architecture: int
) -> None:
    code = program(monkeypatch, machine)
    for name, numbers in seccomp.DENIED.items():
        if numbers[column] is not None:
            wanted = errno.ENOSYS if name.startswith(("io_", "inotify_")) else errno.EPERM
            assert verdict(code, numbers[column], architecture=architecture) == refused(wanted), name


@pytest.mark.parametrize(("machine", "column", "architecture"), [("x86_64", 0, X86), ("aarch64", 1, ARM)])
@pytest.mark.parametrize("option", ["has_cgroup", "has_own_uid"])
def test_what_only_a_cgroup_or_an_own_uid_bounds_is_missing_without_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, column: int, architecture: int, option: str
) -> None:
    table = {"has_cgroup": seccomp.UNCOUNTED, "has_own_uid": seccomp.EPOLL}[option]
    numbers = [pair[column] for pair in table.values() if pair[column] is not None]
    bounded, unbounded = program(monkeypatch, machine), program(monkeypatch, machine, **{option: False})
    for number in numbers:
        assert verdict(bounded, number, architecture=architecture) == ALLOW
        assert verdict(unbounded, number, architecture=architecture) == refused(errno.ENOSYS)


@pytest.mark.parametrize(
    ("arguments", "is_ignored"),
    [
        ((3, 1, 7), True),  # SOL_SOCKET, SO_SNDBUF
        ((3, 1, 8), True),  # SOL_SOCKET, SO_RCVBUF
        ((3, 1, 2), False),  # SOL_SOCKET, SO_REUSEADDR
        ((3, 6, 7), False),  # IPPROTO_TCP, TCP_SYNCNT
        ((3, 6, 8), False),  # IPPROTO_TCP, TCP_LINGER2
    ],
)
def test_without_a_cgroup_the_buffers_of_sockets_keep_their_size(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int, ...], is_ignored: bool
) -> None:
    """An errno of zero: the call returns 0 and does nothing."""
    assert verdict(program(monkeypatch, "x86_64"), 54, *arguments) == ALLOW
    assert verdict(program(monkeypatch, "x86_64", has_cgroup=False), 54, *arguments) == (ERRNO if is_ignored else ALLOW)


def test_no_number_is_listed_twice() -> None:
    table = seccomp.DENIED | seccomp.UNCOUNTED | seccomp.EPOLL
    for column in (0, 1):
        numbers = [pair[column] for pair in table.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("number", "arguments", "wanted"),
    [
        (0, (), ALLOW),  # read
        (56, (0x11,), ALLOW),  # clone: a fork
        (56, (0x3D0F00,), ALLOW),  # a thread
        (56, (0x10000000,), refused(errno.EPERM)),  # a user namespace
        (56, (0x00020000 | 0x11,), refused(errno.EPERM)),
        (435, (), refused(errno.ENOSYS)),  # clone3
        (16, (0, 0x5401), ALLOW),  # ioctl: TCGETS
        (16, (0, 0x5412), refused(errno.EPERM)),  # TIOCSTI
        (16, (0, 0xFFFFFFFF00005412), refused(errno.EPERM)),  # the kernel takes the low word
        (302, (0,), ALLOW),  # prlimit of oneself
        (302, (1,), refused(errno.EPERM)),
        (41, (1,), ALLOW),  # socket: unix, internet 4 and 6, netlink
        (41, (2,), ALLOW),
        (41, (10,), ALLOW),
        (41, (16,), ALLOW),
        (41, (17,), refused(errno.EAFNOSUPPORT)),  # packet
        (41, (40,), refused(errno.EAFNOSUPPORT)),  # vsock
        (0x40000000, (), refused(errno.ENOSYS)),  # the x32 calls
    ],
)
def test_arguments_decide_where_they_must(
    monkeypatch: pytest.MonkeyPatch, number: int, arguments: tuple[int, ...], wanted: int
) -> None:
    assert verdict(program(monkeypatch, "x86_64"), number, *arguments) == wanted


def test_calls_of_another_architecture_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(program(monkeypatch, "x86_64"), 0, architecture=0x40000003) == KILL


def test_a_machine_whose_numbers_are_not_known_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not seccomp.is_supported()
