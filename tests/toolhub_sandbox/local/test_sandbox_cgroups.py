"""Which cgroups are used, from what the kernel tells: v2, v1, both, or none. Folders stand for the kernel's."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from toolhub_sandbox.local import cgroups
from toolhub_sandbox.local.cgroups import Cgroups, MemoryKills, SandboxCgroup, open_cgroups

from toolhub.config import SandboxProfile

PROFILE = SandboxProfile(memory_bytes=1000, processes=10, cpus=0.5)


class Kernel:
    """Writes what /proc and the cgroup file systems would say."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.mounts = ["22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
        self.own: list[str] = []
        self._files = root / "mountinfo", root / "cgroup"
        monkeypatch.setattr(cgroups, "MOUNTS", self._files[0])
        monkeypatch.setattr(cgroups, "OWN", self._files[1])

    def v2(
        self, own: str = "/hub", controllers: str = "cpu memory pids", *, root: str = "/", at: str = "unified"
    ) -> Path:
        return self._add(f"0::{own}", own, root, at, "cgroup2 cgroup2 rw", {"cgroup.controllers": controllers})

    def v1(self, kinds: str, own: str = "/hub", *, root: str = "/") -> Path:
        return self._add(f"4:{kinds}:{own}", own, root, kinds, f"cgroup cgroup rw,{kinds}", {})

    def _add(self, line: str, own: str, root: str, at: str, kind: str, files: dict[str, str]) -> Path:
        self.own.append(line)
        self.mounts.append(f"{len(self.mounts) + 30} 22 0:30 {root} {self.root / at} rw,nosuid - {kind}")
        folder = self.root / at / own.removeprefix("" if root == "/" else root).lstrip("/")
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        self._files[0].write_text("\n".join(self.mounts))
        self._files[1].write_text("\n".join(self.own))
        return folder


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    # Folders that stand for groups hold files, which the kernel's would not count.
    monkeypatch.setattr(cgroups, "remove_tree", lambda folder: [file.unlink() for file in folder.rglob("*.*")])
    return Kernel(tmp_path, monkeypatch)


def made(expected: int) -> Cgroups:
    with open_cgroups() as (groups, why):
        assert groups is not None, why
        assert groups.version == expected
        return groups


def test_version_2_is_used_where_it_has_memory_and_pids(kernel: Kernel) -> None:
    own = kernel.v2()
    groups = made(2)
    assert groups.has_cpu
    (path,) = groups.paths
    assert Path(path).parent == own
    assert Path(path).name.startswith(f"toolhub-sandboxes-{os.getpid()}-")


def test_controllers_are_handed_on_to_the_groups_below(kernel: Kernel) -> None:
    own = kernel.v2()
    (path,) = made(2).paths
    assert set((own / "cgroup.subtree_control").read_text().split()) == {"+memory", "+pids", "+cpu"}
    assert not (Path(path) / "probe").exists()


def test_only_controllers_that_are_there_are_asked_for(kernel: Kernel) -> None:
    own = kernel.v2(controllers="cpuset memory pids hugetlb")
    groups = made(2)
    assert not groups.has_cpu
    assert set((own / "cgroup.subtree_control").read_text().split()) == {"+memory", "+pids"}


@pytest.fixture
def delegated(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group of version 2 that is the hub's own, as systemd delegates one; its files follow the kernel's rules.

    A process is in one group; a group that has processes hands no controllers on (cgroup-v2.rst, "No Internal Process
    Constraint").
    """
    own = kernel.v2()
    (own / "cgroup.procs").write_text(str(os.getpid()))
    write = Path.write_text

    def write_text(self: Path, text: str, *args: Any, **keys: Any) -> int:
        if self.name == "cgroup.procs":
            for other in own.rglob("cgroup.procs"):
                write(other, " ".join(pid for pid in other.read_text().split() if pid != text))
            text = f"{self.read_text() if self.exists() else ''} {text}"
        members = self.parent / "cgroup.procs"
        if self.name == "cgroup.subtree_control" and "+" in text and members.exists() and members.read_text().split():
            raise OSError(errno.EBUSY, "Device or resource busy", str(self))
        return write(self, text, *args, **keys)

    monkeypatch.setattr(Path, "write_text", write_text)
    return own


def members(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def test_a_hub_that_is_alone_in_its_delegated_group_makes_room_for_sandboxes(delegated: Path) -> None:
    with open_cgroups() as (groups, why):
        assert groups is not None and groups.version == 2, why
        assert set((delegated / "cgroup.subtree_control").read_text().split()) == {"+memory", "+pids", "+cpu"}
        assert groups.leaf is not None and groups.leaf.parent == delegated
        assert (members(delegated), members(groups.leaf)) == (set(), {os.getpid()})
        assert [Path(path).parent for path in groups.paths] == [delegated]
    assert members(delegated) == {os.getpid()}


def test_programs_that_the_hub_started_make_room_with_it(delegated: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as program:
        try:
            (delegated / "cgroup.procs").write_text(str(program.pid))
            with open_cgroups() as (groups, why):
                assert groups is not None and groups.leaf is not None, why
                assert members(groups.leaf) == {os.getpid(), program.pid}
            assert members(delegated) == {os.getpid(), program.pid}
        finally:
            program.kill()


def test_a_group_that_others_are_in_is_left_alone(delegated: Path) -> None:
    (delegated / "cgroup.procs").write_text("1")
    with open_cgroups() as (groups, why):
        assert groups is None
    assert "the hub's group has programs that are not the hub's" in why
    assert members(delegated) == {1, os.getpid()}


def test_version_1_has_a_group_per_controller(kernel: Kernel) -> None:
    folders = {kind: kernel.v1(kind, own) for kind, own in (("memory", "/a/b"), ("pids", "/"), ("cpu", "/c"))}
    groups = made(1)
    assert {kind: folder.parent for kind, folder in groups.folders.items()} == folders


def test_controllers_that_share_a_mount_share_a_group(kernel: Kernel) -> None:
    kernel.v1("cpu,cpuacct")
    kernel.v1("memory")
    kernel.v1("pids")
    groups = made(1)
    assert set(groups.folders) == {"cpu", "memory", "pids"}
    assert len(groups.paths) == 3


def test_a_hybrid_whose_version_2_has_no_controllers_uses_version_1(kernel: Kernel) -> None:
    kernel.v2("/", controllers="")
    kernel.v1("memory")
    kernel.v1("pids")
    kernel.v1("name=systemd")
    assert not made(1).has_cpu


def test_a_container_that_sees_only_its_own_part_of_the_tree_uses_that(kernel: Kernel) -> None:
    own = {kind: kernel.v1(kind, "/docker/abc", root="/docker/abc") for kind in ("memory", "pids")}
    assert own["memory"] == kernel.root / "memory"
    assert {kind: folder.parent for kind, folder in made(1).folders.items()} == own


def test_without_controllers_there_is_none_and_a_reason(kernel: Kernel) -> None:
    kernel.v2(controllers="cpu io")
    kernel.v1("freezer")
    with open_cgroups() as (groups, why):
        assert groups is None
    assert why == "v2 has no memory and pids controllers here; v1 has no memory and pids controllers here"


def test_a_group_that_may_not_be_written_is_a_reason(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    own = kernel.v2()

    def refuse(self: Path, *args: object, **keys: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with open_cgroups() as (groups, why):
        assert groups is None
    assert "v2: Permission denied" in why
    assert str(own) in why


def test_without_proc_there_is_none(kernel: Kernel) -> None:
    with open_cgroups() as (groups, _):
        assert groups is None


def test_a_sandbox_has_the_limits_of_its_profile_in_version_2(kernel: Kernel) -> None:
    kernel.v2()
    folder = made(2).create("sbx1", PROFILE).folders["memory"]
    read = {file.name: file.read_text() for file in folder.iterdir()}
    assert read == {"memory.max": "1000", "pids.max": "14", "cpu.max": "50000 100000"}


def test_a_sandbox_has_no_swap_where_there_is_some(kernel: Kernel) -> None:
    kernel.v2()
    groups = made(2)
    folder = groups.folders["memory"] / "sbx1"
    folder.mkdir()
    (folder / "memory.swap.max").write_text("max")
    groups.create("sbx1", PROFILE)
    assert (folder / "memory.swap.max").read_text() == "0"


def test_a_sandbox_has_the_limits_of_its_profile_in_version_1(kernel: Kernel) -> None:
    for kind in ("memory", "pids", "cpu"):
        kernel.v1(kind)
    folders = made(1).create("sbx1", PROFILE).folders
    read = {kind: [(file.name, file.read_text()) for file in folder.iterdir()] for kind, folder in folders.items()}
    assert read == {
        "memory": [("memory.limit_in_bytes", "1000")],
        "pids": [("pids.max", "14")],
        "cpu": [("cpu.cfs_quota_us", "50000")],
    }


def test_a_profile_without_cpus_has_no_quota(kernel: Kernel) -> None:
    kernel.v2()
    folder = made(2).create("sbx1", SandboxProfile()).folders["memory"]
    assert not (folder / "cpu.max").exists()


def test_what_a_killed_hub_left_is_removed_and_what_a_live_one_has_is_not(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = kernel.v2()
    gone = own / "toolhub-sandboxes-999999999-abc"  # beyond the largest pid
    mine = own / f"toolhub-sandboxes-{os.getpid()}-other"
    for folder in (gone, mine):
        folder.mkdir()
    removed: list[Path] = []
    monkeypatch.setattr(cgroups, "remove_tree", removed.append)
    with open_cgroups() as (groups, _):
        assert groups is not None
        assert removed == [gone]
    assert [str(folder) for folder in removed[1:]] == groups.paths


def test_what_is_used_is_read_from_the_hubs_own_group(kernel: Kernel) -> None:
    kernel.v2()
    groups = made(2)
    assert groups.memory_bytes == 0
    (groups.folders["memory"] / "memory.current").write_text("4096\n")
    assert groups.memory_bytes == 4096


@pytest.mark.parametrize(("version", "name"), [(2, "memory.events"), (1, "memory.oom_control")])
def test_kills_for_memory_are_told_once(tmp_path: Path, version: int, name: str) -> None:
    kills = MemoryKills("a", SandboxCgroup({"memory": tmp_path}, version))
    assert not kills.is_new()
    (tmp_path / name).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert [kills.is_new(), kills.is_new()] == [True, False]
    (tmp_path / name).write_text("oom_kill 3\n")
    assert kills.is_new()


def test_the_watch_tells_of_its_own_kills() -> None:
    kills = MemoryKills("a", None)
    kills.note("b")
    assert not kills.is_new()
    kills.note("a")
    assert [kills.is_new(), kills.is_new()] == [True, False]


def test_removing_a_group_that_is_not_empty_or_gone_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    (folder / "file").touch()
    group = SandboxCgroup({"memory": folder, "pids": tmp_path / "gone"}, 1)
    group.remove()
    assert folder.exists()
