"""Whom sandboxes run as."""

from __future__ import annotations

import os
import pwd
from types import SimpleNamespace

import pytest
from toolhub_sandbox import SandboxUnavailable
from toolhub_sandbox.local.uids import UNUSED_UID, account


@pytest.fixture
def is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("user", [None, "nobody"])
def test_whoever_is_not_root_cannot_be_another(monkeypatch: pytest.MonkeyPatch, user: str | None) -> None:
    for name, number in (("geteuid", 1234), ("getuid", 1234), ("getgid", 1235)):
        monkeypatch.setattr(os, name, lambda number=number: number)
    assert account(user) == (1234, 1235)


@pytest.mark.usefixtures("is_root")
def test_root_without_a_user_gives_them_an_id_that_nobody_has() -> None:
    assert account(None) == (UNUSED_UID, UNUSED_UID)


@pytest.mark.usefixtures("is_root")
def test_an_account_is_found_by_name_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(pw_uid=812, pw_gid=99)
    monkeypatch.setattr(pwd, "getpwnam", {"runner": entry}.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", {812: entry}.__getitem__)
    assert account("runner") == account("812") == (812, 99)


@pytest.mark.usefixtures("is_root")
def test_a_number_needs_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert account("54321") == (54321, 54321)


@pytest.mark.usefixtures("is_root")
def test_a_name_without_an_account_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.user: there is no account 'no-such-user'"):
        account("no-such-user")


@pytest.mark.usefixtures("is_root")
@pytest.mark.parametrize("user", ["root", "0", "00"])
def test_root_is_refused_however_it_is_written(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    with pytest.raises(SandboxUnavailable, match="must not run as root"):
        account(user)
    if user != "root":
        monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
        with pytest.raises(SandboxUnavailable, match=r"sandbox\.user"):
            account(user)
