"""Limits on whole sandboxes by cgroups: v2 where its controllers can be used, else v1, else none.

`open_cgroups()` makes one group per hub, with a child per sandbox. Making them needs write access to the hub's own
group: root, or a service manager's delegation (systemd: `Delegate=yes`). In v2 a group that has processes cannot have
groups with limits below it, so a hub that is alone in its group moves into a leaf of it while sandboxes are open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolhub.config import SandboxProfile
from toolhub_sandbox.inside.processes import descendants

PREFIX = "toolhub-sandboxes-"
# Killed processes leave a group within milliseconds.
_KILL_ROUNDS, _KILL_PAUSE_S = 100, 0.005
MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
_PERIOD_US = 100_000
_MOVE_ROUNDS = 20
# The agent, and room for the shims of commands.
_SPARE_PROCESSES = 4


@dataclass(eq=False)
class SandboxCgroup:
    """The groups of one sandbox: one in v2, one per controller in v1."""

    folders: Mapping[str, Path]
    """By controller."""
    version: int

    @contextmanager
    def cgroup_fds(self) -> Iterator[list[int]]:
        """Give descriptors to which a process writes "0" to move itself into the groups. Raises OSError.

        Moving another process takes a lock that waits for all processors, typically ten milliseconds. In v1 a thread
        that moves itself needs no lock (`cgroup_procs_write_start` in kernel/cgroup/cgroup.c). In v2 the agent waits
        instead of the hub. The kernel checks the permissions of the process that opened the file.
        """
        file = "cgroup.procs" if self.version == 2 else "tasks"
        opened: list[int] = []
        try:
            opened.extend(os.open(folder / file, os.O_WRONLY) for folder in set(self.folders.values()))
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    @property
    def out_of_memory_kills(self) -> int:
        """How many processes the kernel killed for the memory limit."""
        name, key = ("memory.events", "oom_kill") if self.version == 2 else ("memory.oom_control", "oom_kill")
        return _value(self.folders["memory"] / name, key)

    def remove(self) -> None:
        """Kill the processes that are left in the groups, and remove the groups."""
        for folder in set(self.folders.values()):
            remove_tree(folder)


@dataclass(eq=False)
class MemoryKills:
    """Counts the processes of a sandbox that were killed for its memory, by the kernel or by the watch."""

    sandbox_id: str
    group: SandboxCgroup | None
    _by_watch: int = 0
    _reported: int = 0

    def note(self, sandbox_id: str) -> None:
        """Count a process that the watch killed, if it was one of this sandbox."""
        self._by_watch += sandbox_id == self.sandbox_id

    def is_new(self) -> bool:
        """Whether processes were killed since the last call."""
        kills = self._by_watch if self.group is None else self.group.out_of_memory_kills
        before, self._reported = self._reported, kills
        return kills > before


@dataclass(eq=False)
class Cgroups:
    """The groups of one hub."""

    folders: Mapping[str, Path]
    version: int
    leaf: Path | None = None
    """The group that the hub's own processes were moved to, if they had to move."""

    @property
    def has_cpu(self) -> bool:
        return "cpu" in self.folders

    @property
    def paths(self) -> list[str]:
        return sorted({str(folder) for folder in self.folders.values()})

    @property
    def memory_bytes(self) -> int:
        """Memory of all sandboxes together."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        try:
            return int((self.folders["memory"] / name).read_text())
        except (OSError, ValueError):
            return 0

    def create(self, name: str, profile: SandboxProfile) -> SandboxCgroup:
        """Make the group of one sandbox. Raises OSError."""
        group = SandboxCgroup({kind: folder / name for kind, folder in self.folders.items()}, self.version)
        for folder in set(group.folders.values()):
            folder.mkdir(exist_ok=True)
        for kind, (file, value) in self._limits(profile).items():
            if kind in group.folders:
                (group.folders[kind] / file).write_text(value)
        if self.version == 2 and (swap := group.folders["memory"] / "memory.swap.max").exists():
            swap.write_text("0")
        elif (both := group.folders["memory"] / "memory.memsw.limit_in_bytes").exists():
            both.write_text(str(profile.memory_bytes))
        return group

    def _limits(self, profile: SandboxProfile) -> dict[str, tuple[str, str]]:
        processes = str(profile.processes + _SPARE_PROCESSES)
        quota = str(int(profile.cpus * _PERIOD_US)) if profile.cpus else None
        limits = {"pids": ("pids.max", processes)}
        if self.version == 2:
            limits["memory"] = ("memory.max", str(profile.memory_bytes))
            if quota:
                limits["cpu"] = ("cpu.max", f"{quota} {_PERIOD_US}")
        else:
            limits["memory"] = ("memory.limit_in_bytes", str(profile.memory_bytes))
            if quota:
                limits["cpu"] = ("cpu.cfs_quota_us", quota)
        return limits


@contextmanager
def open_cgroups() -> Iterator[tuple[Cgroups | None, str]]:
    """Give the hub's groups and their version, or None and the reason why there are none. Leaving removes them."""
    groups, why = _create()
    try:
        yield groups, why
    finally:
        for path in groups.paths if groups else ():
            remove_tree(Path(path))
        if groups is not None and groups.leaf is not None:
            _move_up(groups.leaf)


def remove_tree(folder: Path) -> None:
    """Remove a tree of groups and kill the processes in them: without a pid namespace some may be left."""
    for parent, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(parent)
        except OSError:
            _end_members(Path(parent))


def _end_members(group: Path) -> None:
    """Kill until the group is empty, and remove it. Bounded: a process that cannot be killed is left."""
    with contextlib.suppress(OSError):
        (group / "pids.max").write_text("0")  # otherwise a fork bomb would be faster
    for _ in range(_KILL_ROUNDS):
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)
        with contextlib.suppress(OSError):
            group.rmdir()
            return


def _create() -> tuple[Cgroups | None, str]:
    own = _own_groups()
    name = f"{PREFIX}{os.getpid()}-{os.urandom(3).hex()}"
    reasons = []
    for version, parents in ((2, own.get(2, {})), (1, own.get(1, {}))):
        if not {"memory", "pids"} <= set(parents):
            reasons.append(f"v{version} has no memory and pids controllers here")
            continue
        folders = {kind: parent / name for kind, parent in parents.items() if kind in ("memory", "pids", "cpu")}
        leaf = None
        try:
            try:
                _make(folders, version)
            except OSError as exc:
                if version != 2 or exc.errno != errno.EBUSY:
                    raise
                leaf = _move_down(folders["memory"].parent, f"{name}-hub")
                _make(folders, version)
        except OSError as exc:
            for folder in set(folders.values()):
                remove_tree(folder)
            if leaf is not None:
                _move_up(leaf)
            reasons.append(f"v{version}: {exc.strerror or exc} ({exc.filename or ''})")
            continue
        _sweep(set(parents.values()))
        return Cgroups(folders, version, leaf), f"cgroup v{version}"
    return None, "; ".join(reasons)


def _make(folders: Mapping[str, Path], version: int) -> None:
    for folder in set(folders.values()):
        folder.mkdir(exist_ok=True)
        if version == 2:
            # Children get controllers only from a parent that hands them on; refused where it holds processes itself.
            wanted = " ".join(f"+{kind}" for kind in folders)  # one missing controller would make the kernel refuse all
            (folder.parent / "cgroup.subtree_control").write_text(wanted)
            (folder / "cgroup.subtree_control").write_text(wanted)
        elif (hierarchical := folder / "memory.use_hierarchy").exists():
            hierarchical.write_text("1")
    probe = folders["memory"] / "probe"
    probe.mkdir()
    probe.rmdir()


def _move_down(group: Path, name: str) -> Path:
    """Move this process and those below it from `group` to a new leaf of it. Raises OSError if others are in it, too.

    systemd's "Control Group APIs and Delegation" asks this of a program that manages what it was delegated.
    """
    leaf = group / name
    leaf.mkdir()
    try:
        for _ in range(_MOVE_ROUNDS):  # until no process was forked in between
            members = set(map(int, (group / "cgroup.procs").read_text().split()))
            if not members:
                return leaf
            if members - {os.getpid(), *descendants(os.getpid())}:
                raise OSError(errno.EBUSY, "the hub's group has programs that are not the hub's", str(group))
            for pid in members:
                _move(pid, leaf)
        raise OSError(errno.EBUSY, "the hub starts programs faster than they can be moved", str(group))
    except OSError:
        _move_up(leaf)
        raise


def _move_up(leaf: Path) -> None:
    """Undo `_move_down()`, as far as that is possible."""
    group = leaf.parent
    with contextlib.suppress(OSError):
        wanted = (group / "cgroup.subtree_control").read_text().split()
        (group / "cgroup.subtree_control").write_text(" ".join(f"-{kind}" for kind in wanted))
    with contextlib.suppress(OSError):
        for pid in (leaf / "cgroup.procs").read_text().split():
            _move(int(pid), group)
        leaf.rmdir()


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        (group / "cgroup.procs").write_text(str(pid))


def _sweep(parents: Iterable[Path]) -> None:
    """Remove groups that a killed hub left behind."""
    for parent in parents:
        for left in parent.glob(f"{PREFIX}*"):
            pid = left.name.removeprefix(PREFIX).partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                remove_tree(left)


def _own_groups() -> dict[int, dict[str, Path]]:
    """This process's own group, by version and controller."""
    try:
        lines = OWN.read_text().splitlines()
        mounts = _mounts()
    except OSError:
        return {}
    found: dict[int, dict[str, Path]] = {}
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            if (mount := mounts.get("")) is not None:
                folder = mount.folder(path)
                found[2] = dict.fromkeys(_controllers(folder), folder)
            continue
        for kind in kinds.split(","):
            if (mount := mounts.get(kind)) is not None:
                found.setdefault(1, {})[kind] = mount.folder(path)
    return found


def _controllers(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class _Mount:
    point: Path
    root: str
    """What of the tree is mounted: in a container often only its own part."""

    def folder(self, path: str) -> Path:
        """Where the group `path` is seen."""
        below = os.path.relpath(path, self.root)
        return self.point if below.startswith("..") else self.point / below


def _mounts() -> dict[str, _Mount]:
    """Mounts by v1 controller; "" is v2's."""
    found = {}
    for line in MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        root, point = before.split()[3:5]
        mount = _Mount(Path(point), root)
        if kind == "cgroup2":
            found[""] = mount
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), mount))
    return found


def _value(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
