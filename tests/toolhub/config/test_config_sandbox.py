"""The `sandbox` section: defaults, own profiles beside the known ones, and refusals that say the way out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from toolhub.config import AllowedHosts, SandboxProfile, SandboxSettings, parse_config
from toolhub.errors import ConfigError


def section(**keys: Any) -> SandboxSettings:
    return parse_config({"sandbox": keys}, environ={}).sandbox


def profile(**keys: Any) -> SandboxProfile:
    return section(profiles={"x": keys}).profiles["x"]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        section(**keys)
    return str(caught.value)


@pytest.mark.quick
def test_without_a_section_sandboxes_are_local_bare_and_without_network() -> None:
    settings = parse_config({}, environ={}).sandbox
    assert (settings.backend, settings.python, settings.user, settings.default_profile) == ("local", None, None, "bare")
    assert settings.profiles["bare"] == SandboxProfile()
    assert settings.profiles["bare"].network == "none"
    assert settings == SandboxSettings()


def test_an_empty_section_is_as_good_as_none() -> None:
    assert parse_config({"sandbox": None}, environ={}).sandbox == section(profiles=None, e2b=None) == section()


def test_the_known_profiles_are_there_beside_ones_own() -> None:
    settings = section(profiles={"web": {"network": "host"}}, default_profile="web")
    assert set(settings.profiles) == {"bare", "data", "web"}
    assert settings.profiles["data"].preload == ["numpy", "pandas", "matplotlib.pyplot"]


def test_ones_own_profile_of_a_known_name_replaces_the_known_one() -> None:
    assert section(profiles={"data": {"pool": 0}}).profiles["data"] == SandboxProfile(pool=0)


def test_settings_made_in_code_have_the_known_profiles_too() -> None:
    assert set(SandboxSettings(profiles={"own": SandboxProfile(pool=1)}).profiles) == {"bare", "data", "own"}


@pytest.mark.parametrize("network", ["none", "host"])
def test_a_network_is_named(network: str) -> None:
    assert profile(network=network).network == network


def test_a_network_may_be_a_list_of_hosts_in_any_case_with_ports() -> None:
    network = profile(network={"allow": ["PyPI.org", "*.example.org", "h:8443", "127.0.0.1:80"]}).network
    assert network == AllowedHosts(allow=["pypi.org", "*.example.org", "h:8443", "127.0.0.1:80"])


def test_a_network_made_in_code_is_taken_as_it_is() -> None:
    hosts = AllowedHosts(allow=["example.org"])
    assert SandboxProfile(network=hosts).network is hosts
    with pytest.raises(ValidationError, match="'allow' with a list of hosts"):
        SandboxProfile(network="lan")  # type: ignore[arg-type]  # what a careless caller writes


def test_variables_may_be_numbers_and_truths_and_do_not_show() -> None:
    made = profile(env={"N": 3, "YES": True, "KEY": "secret"})
    assert made.env == {"N": "3", "YES": "true", "KEY": "secret"}
    assert "secret" not in repr(made)


def test_the_key_of_the_hosted_service_does_not_show() -> None:
    assert "secret" not in repr(section(e2b={"api_key": "secret"}))


NETWORKS = "expected 'none', 'host' or the key 'allow' with a list of hosts, found"
A_HOST = "is not a host: write example.org, *.example.org or example.org:8443"


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ("hots", f"network: {NETWORKS} another string; did you mean 'host'?"),
        (3, f"network: {NETWORKS} a number"),
        (True, f"network: {NETWORKS} a boolean"),
        (None, f"network: {NETWORKS} nothing (null)"),
        (["example.org"], f"network: {NETWORKS} a list"),
        ({}, f"network: {NETWORKS} a mapping"),
        ({"allow": []}, "network.allow: must not be empty"),
        ({"allow": None}, "network.allow: must not be empty"),
        ({"allow": "example.org"}, "network.allow: expected a list, found a string"),
        ({"allow": ["ok.org", "a b"]}, f"network.allow[1]: 'a b' {A_HOST}"),
        ({"allow": ["https://a.org"]}, f"network.allow[0]: 'https://a.org' {A_HOST}"),
        ({"allow": ["a.org:0"]}, f"network.allow[0]: 'a.org:0' {A_HOST}"),
        ({"allow": ["a.org:65536"]}, f"network.allow[0]: 'a.org:65536' {A_HOST}"),
        ({"alow": ["a.org"]}, "network.alow: unknown key 'alow'; did you mean 'allow'?"),
    ],
)
def test_a_wrong_network_is_refused_under_the_key_that_was_written(network: Any, complaint: str) -> None:
    message = refusal(profiles={"x": {"network": network}})
    assert f"sandbox.profiles.x.{complaint}" in message
    assert "literal" not in message
    assert "AllowedHosts" not in message


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"preload": ["a-b"]}, "preload[0]: 'a-b' is not the name of a Python module"),
        ({"preload": "numpy"}, "preload: expected a list, found a string"),
        ({"read_only": ["data"]}, "read_only[0]: 'data' must be an absolute path"),
        ({"pool": -1}, "pool: must be at least 0"),
        ({"pool": True}, "pool: expected a whole number, found a boolean"),
        ({"memory_bytes": 0}, "memory_bytes: must be at least 1"),
        ({"memory_bytes": "1G"}, "memory_bytes: expected a whole number, found a string"),
        ({"cpus": 0}, "cpus: must be greater than 0"),
        ({"cpus": True}, "cpus: expected a number, found a boolean"),
        ({"cpus": 1025}, "cpus: must be at most 1024"),
        ({"exec_timeout_s": 0}, "exec_timeout_s: must be greater than 0"),
        ({"exec_timeout_s": float("inf")}, "exec_timeout_s: expected a finite number"),
        ({"env": ["A=1"]}, "env: expected a mapping, found a list"),
        ({"env": {"A=": "1"}}, "env.A=: the name of an environment variable is not empty and has no '='"),
        ({"memory": 1}, "memory: unknown key 'memory'; did you mean 'memory_bytes'?"),
    ],
)
def test_a_wrong_profile_is_refused_with_what_was_expected(keys: dict[str, Any], complaint: str) -> None:
    assert f"sandbox.profiles.x.{complaint}" in refusal(profiles={"x": keys})


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"backend": "bwarp"}, "backend: expected 'local', 'bwrap', 'subprocess' or 'e2b', found another string; did"),
        ({"python": "python3"}, "python: 'python3' must be an absolute path"),
        ({"user": ""}, "user: must not be empty"),
        ({"max_sandboxes": 0}, "max_sandboxes: must be at least 1"),
        ({"max_per_task": 1.5}, "max_per_task: expected a whole number, found a number"),
        ({"memory_budget_bytes": 0}, "memory_budget_bytes: must be at least 1"),
        ({"profiles": ["bare"]}, "profiles: expected a mapping, found a list"),
        ({"profiles": {"x": 3}}, "profiles.x: expected a mapping, found a number"),
        ({"profile": {}}, "profile: unknown key 'profile'; did you mean 'profiles'?"),
        ({"default_profile": "dta"}, "default_profile: there is no profile 'dta'; did you mean 'data'? there are bare"),
        ({"e2b": {"api_key": ""}}, "e2b.api_key: must not be empty"),
        ({"e2b": {"creates_per_second": 0}}, "e2b.creates_per_second: must be greater than 0"),
        ({"e2b": {"lease": 3}}, "e2b.lease: unknown key 'lease'; did you mean 'lease_s'?"),
    ],
)
def test_a_wrong_key_is_refused_with_what_was_expected(keys: dict[str, Any], complaint: str) -> None:
    assert f"sandbox.{complaint}" in refusal(**keys)


def test_every_wrong_key_is_told_at_once() -> None:
    message = refusal(backend=3, profiles={"x": {"pool": -1, "network": "lan"}}, default_profile="y")
    keys = ("sandbox.backend:", "sandbox.profiles.x.pool:", "sandbox.profiles.x.network:")
    assert all(key in message for key in keys)
    assert "default_profile" not in message, "the profiles are not known, so nothing can be said of it"
