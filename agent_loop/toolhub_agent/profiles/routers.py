"""Routers in front of several servers, which keep a conversation where its prefix is cached."""

from __future__ import annotations

from collections.abc import Mapping

from toolhub.errors import ConfigError
from toolhub_agent.profiles import dynamo
from toolhub_agent.profiles.flags import flag
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Profile, Router, Server

_PROGRAMS = {
    "sgl-model-gateway": ("python3", "-m", "sglang_router.launch_router"),
    "vllm-router": ("vllm-router",),
}
_SPLIT = {"sgl-model-gateway": "pd-disaggregation", "vllm-router": "vllm-pd-disaggregation"}
_POLICIES = {
    # consistent_hashing goes by X-SMG-Routing-Key, consistent_hash by X-Session-ID; toolhub sends both.
    "sgl-model-gateway": (
        *("random", "round_robin", "power_of_two", "cache_aware", "bucket"),
        *("manual", "consistent_hashing"),
    ),
    "vllm-router": ("random", "round_robin", "cache_aware", "power_of_two", "consistent_hash"),
    "dynamo": ("round-robin", "random", "kv", "least-loaded"),
}


def line(profile: Profile, router: Router) -> Line:
    _check(router)
    if router.kind == "dynamo":
        return dynamo.frontend(router)
    argv = [*_PROGRAMS[router.kind], *_workers(router, profile.servers)]
    argv += flag("host", router.listens_on) + flag("port", router.port)
    return Line("router", router.node, (*argv, *router.extra_args))


def _check(router: Router) -> None:
    known = _POLICIES[router.kind]
    for name in ("policy", "decode_policy"):
        if (policy := getattr(router, name)) is not None and policy not in known:
            raise ConfigError(f"{router.kind} knows {', '.join(known)}", key=f"router.{name}")
    if router.kind == "dynamo":
        if router.decode_policy is not None:
            raise ConfigError("dynamo has one mode for all workers", key="router.decode_policy")
    elif router.affinity_s is not None or router.discovery is not None:
        key = "affinity_s" if router.affinity_s is not None else "discovery"
        raise ConfigError("only dynamo has that", key=f"router.{key}")


def _workers(router: Router, servers: Mapping[str, Server]) -> list[str]:
    halves = {role: [server for server in servers.values() if server.role() == role] for role in ("prefill", "decode")}
    if not any(halves.values()):
        return ["--worker-urls", *(server.url for server in servers.values()), *flag("policy", router.policy)]
    if not all(halves.values()) or sum(map(len, halves.values())) != len(servers):
        raise ConfigError("disaggregated servers need both halves and no others beside them", key="servers")
    argv = flag(_SPLIT[router.kind])
    for server in halves["prefill"]:
        assert server.disaggregation is not None
        # SGLang's halves meet at the bootstrap port; vLLM's router needs none for NIXL.
        port = server.disaggregation.port if server.engine == "sglang" else None
        argv += ["--prefill", server.url, *([str(port)] if port else [])]
    for server in halves["decode"]:
        argv += ["--decode", server.url]
    argv += flag("prefill-policy", router.policy)
    return argv + flag("decode-policy", router.decode_policy or router.policy)
