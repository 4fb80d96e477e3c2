"""Which uids sandboxes have, and when there are none left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toolhub_sandbox import OwnerSandboxes, Sandboxes, SandboxLimit
from toolhub_sandbox.inside.zygote import ZygoteSettings, _map_uids
from toolhub_sandbox.local.uids import UNUSED_UID, UidPool, uid_pool

from tests.toolhub_sandbox.local.sandbox_stage import patience, settings
from toolhub.config import SandboxSettings


def test_no_uid_is_lent_twice_until_it_is_given_back() -> None:
    uids = UidPool(100, 104, reserved=102)
    assert {uids.take() for _ in range(4)} == {100, 101, 103, 104} == uids.lent
    with pytest.raises(SandboxLimit, match=r"4 sandboxes have all uids of sandbox.uids \(100-104\)") as caught:
        uids.take()
    assert caught.value.limit == "uids"
    uids.give_back(103)
    assert uids.lent == {100, 101, 104}
    assert uids.take() == 103


def test_the_uid_that_was_given_back_last_is_lent_again_last() -> None:
    uids = UidPool(100, 104, reserved=0)
    first = uids.take()
    uids.give_back(first)
    assert [uids.take() for _ in range(5)][-1] == first


def test_what_was_not_lent_cannot_be_given_back() -> None:
    with pytest.raises(KeyError):
        UidPool(100, 104, reserved=0).give_back(100)


@pytest.mark.parametrize("text", ["0-10", "10", "20-10", "a-b", "-5", "1-", "1-4294967295", "1 - 5", ""])
def test_what_is_no_range_of_uids_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of uids: write FIRST-LAST"):
        SandboxSettings(uids=text)


def test_the_usual_range_has_room_for_the_usual_number_of_sandboxes_and_not_the_zygotes_own() -> None:
    defaults = SandboxSettings()
    first, last = defaults.uid_range
    assert last - first + 1 > defaults.max_sandboxes + 2 * 16
    assert not first <= UNUSED_UID <= last


@pytest.mark.parametrize(("uid", "user", "has_uids"), [(0, None, True), (0, "nobody", False), (1000, None, False)])
def test_only_root_without_an_account_for_sandboxes_lends_uids(
    monkeypatch: pytest.MonkeyPatch, uid: int, user: str | None, has_uids: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert (uid_pool(SandboxSettings(user=user)) is not None) == has_uids


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps uids of others")
@pytest.mark.parametrize(
    ("own_uids", "is_possible", "mapped"),
    [
        ((60578, 60580), True, [[60578, 60578, 3], [60987, 60987, 1]]),
        ((60980, 60990), True, [[60980, 60980, 11]]),
        ((20, 10), False, [[60987, 60987, 1]]),  # the kernel refuses it, as it does what a container does not have
    ],
)
def test_where_the_uids_cannot_be_mapped_all_sandboxes_share_the_zygotes_own(
    own_uids: tuple[int, int], is_possible: bool, mapped: list[list[int]]
) -> None:
    wait = "from toolhub_sandbox.inside import syscalls; syscalls.unshare(syscalls.CLONE_NEWUSER); print(); input()"
    settings = ZygoteSettings("namespaces", [], [], uid=60987, gid=60987, host_network=False, own_uids=own_uids)
    with subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert _map_uids(process.pid, settings) == is_possible
        for name in ("uid_map", "gid_map"):
            lines = Path(f"/proc/{process.pid}/{name}").read_text().splitlines()
            assert [list(map(int, line.split())) for line in lines] == mapped
        process.kill()


@pytest.mark.anyio
async def test_with_every_uid_in_use_the_next_sandbox_is_refused_and_may_come_later() -> None:
    with patience():
        async with Sandboxes(settings(uids="61000-61001")) as sandboxes:
            scope: OwnerSandboxes = sandboxes.for_owner("test")
            first, _ = await scope.create(), await scope.create()
            if os.geteuid() == 0:  # an ordinary user has one uid for all of them
                with pytest.raises(SandboxLimit, match="sandbox.uids"):
                    await scope.create()
            await first.kill()
            later = await scope.create()
            assert (await later.exec_code("1 + 1")).result == "2"


@pytest.mark.anyio
async def test_an_account_for_all_sandboxes_is_shared_and_has_no_epoll() -> None:
    with patience():
        async with Sandboxes(settings(user="61002")) as sandboxes:
            box = await sandboxes.for_owner("test").create()
            done = await box.exec_code("import select\nselect.epoll()")
    assert done.error is not None and "Function not implemented" in done.error.value
