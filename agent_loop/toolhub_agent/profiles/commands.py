"""From a profile to the commands that start its servers, in the order in which they are started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import toolhub_agent
from toolhub.errors import ConfigError
from toolhub_agent.profiles.profile import Disaggregation, Profile, RouterProfile, ServerProfile
from toolhub_runtime import install_command

# --- A command --------------------------------------------------------------------------------------------------------
# One command to type on one machine.


@dataclass(frozen=True)
class LaunchCommand:
    """title: what it starts. node: the host to start it on. notes: what to know before."""

    title: str
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def shell(self) -> str:
        """In one line, variables in front."""
        return " ".join([*self._variables(), *map(shlex.quote, self.argv)])

    def pretty(self) -> str:
        """The same, a flag with its values per line."""
        lines: list[list[str]] = [[name] for name in self._variables()] + [[]]
        for word in self.argv:
            if word.startswith("--"):
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n  ".join(" ".join(line) for line in lines if line)

    def _variables(self) -> list[str]:
        return [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]


# --- Flags ------------------------------------------------------------------------------------------------------------
# Making flags, and refusing what an engine has none for.


def flag(name: str, value: object = True) -> list[str]:
    """`--name value`; nothing for None and False, only the name for True, compact JSON for mappings."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    # A float that is a whole number is written as one.
    return [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]


def switch(name: str, value: bool) -> list[str]:
    """`--name` or `--no-name`."""
    return [f"--{name}" if value else f"--no-{name}"]


def visible_gpus(server: ServerProfile) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, server.gpus))} if server.gpus else {}


def refuse_unsupported(name: str, server: ServerProfile, unknown: Iterable[str]) -> None:
    """unknown: fields that the engine has no flag for, `chunking.dynamic` included.

    Raises ConfigError for those that ask for something.
    """
    for key in unknown:
        asked, default = _field_value(server, key), _field_value(type(server)(engine=server.engine), key)
        if asked != default:
            raise ConfigError(f"{server.engine} has no flag for this setting; remove it", key=f"{name}.{key}")


def _field_value(server: ServerProfile, key: str) -> Any:
    found: Any = server
    for part in key.split("."):
        found = getattr(found, part, None)
    return found


# --- vLLM -------------------------------------------------------------------------------------------------------------
# vLLM's flags. Each was read by the argument parser of the version that the test engine has.

SCHEDULER = "toolhub_agent.vllm_plugin.PinScheduler"
# Other than the API's port; vLLM's own default.
_VLLM_MASTER_PORT = 29501
_NOT_IN_VLLM = ("session_cache", "offload.ratio", "offload.write_policy", "disaggregation.ib_device", "kv_events_port")


def vllm_commands(profile: Profile, name: str, server: ServerProfile) -> list[LaunchCommand]:
    refuse_unsupported(name, server, _NOT_IN_VLLM)
    if server.pins and (server.offload or server.disaggregation):
        raise ConfigError("not tried together with offload or disaggregation", key=f"{name}.pins")
    return [_vllm_command(profile, name, server, rank) for rank in range(len(server.nodes))]


def _vllm_command(profile: Profile, name: str, server: ServerProfile, rank: int) -> LaunchCommand:
    argv = [server.program or "vllm", "serve", profile.model]
    argv += vllm_api_flags(profile, server) if rank == 0 else flag("headless")
    argv += vllm_engine_flags(name, server) + _vllm_node_flags(server, rank)
    environment, notes = _pin_scheduler(server)
    side_channel = _vllm_side_channel(server, rank)
    title = name if len(server.nodes) == 1 else f"{name}, node {rank + 1} of {len(server.nodes)}"
    env = {**visible_gpus(server), **environment, **side_channel, **server.env}
    return LaunchCommand(title, server.nodes[rank], (*argv, *server.extra_args), env, notes)


def vllm_api_flags(profile: Profile, server: ServerProfile) -> list[str]:
    """Those of its HTTP server."""
    return [
        *flag("served-model-name", profile.served_name),
        *flag("host", server.listens_on),
        *flag("port", server.port),
        *flag("enable-prompt-tokens-details", server.cached_tokens),
        *(flag("enable-auto-tool-choice") + flag("tool-call-parser", server.tool_parser) if server.tool_parser else []),
    ]


def vllm_engine_flags(name: str, server: ServerProfile) -> list[str]:
    """Those that every program takes which embeds the engine."""
    chunking = server.chunking
    if chunking.dynamic and not chunking.long_prompt_tokens:
        raise ConfigError("dynamic chunks need chunking.long_prompt_tokens on vLLM", key=f"{name}.chunking.dynamic")
    return [
        *flag("tensor-parallel-size", server.tensor_parallel),
        *flag("pipeline-parallel-size", server.pipeline_parallel if server.pipeline_parallel > 1 else None),
        *flag("max-model-len", server.context_tokens),
        *flag("max-num-seqs", server.max_running),
        *flag("gpu-memory-utilization", server.memory_share),
        *flag("dtype", server.dtype),
        *flag("kv-cache-dtype", server.kv_dtype),
        *flag("block-size", server.block_tokens),
        *flag("enforce-eager", server.eager),
        *switch("enable-prefix-caching", server.prefix_caching),
        *flag("enable-chunked-prefill"),
        *flag("max-num-batched-tokens", chunking.tokens),
        *flag("long-prefill-token-threshold", chunking.long_prompt_tokens),
        *flag("long-prefill-token-threshold-adaptive", chunking.dynamic),
        *(flag("kv-offloading-size", server.offload.gib) if server.offload else []),
        *flag("scheduling-policy", "priority" if server.priority else None),
        *flag("scheduler-cls", SCHEDULER if server.pins else None),
        *flag("reasoning-parser", server.reasoning_parser),
        *flag("disable-log-stats", not server.metrics),
        *flag("kv-transfer-config", _vllm_transfer(name, server.disaggregation)),
    ]


def _vllm_transfer(name: str, half: Disaggregation | None) -> dict[str, str] | None:
    if half is None:
        return None
    if half.transfer != "nixl":
        raise ConfigError("of vLLM's connectors only nixl is known here", key=f"{name}.disaggregation.transfer")
    return {"kv_connector": "NixlConnector", "kv_role": "kv_producer" if half.role == "prefill" else "kv_consumer"}


def _vllm_side_channel(server: ServerProfile, rank: int) -> dict[str, str]:
    """Its own default is localhost, which another machine cannot ask."""
    if server.disaggregation is None:
        return {}
    port = server.disaggregation.port
    host = {"VLLM_NIXL_SIDE_CHANNEL_HOST": server.nodes[rank]}
    return host if port is None else {**host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}


def _vllm_node_flags(server: ServerProfile, rank: int) -> list[str]:
    if len(server.nodes) == 1:
        return []
    return [
        *flag("nnodes", len(server.nodes)),
        *flag("node-rank", rank),
        *flag("master-addr", server.nodes[0]),
        *flag("master-port", _VLLM_MASTER_PORT),
    ]


def _pin_scheduler(server: ServerProfile) -> tuple[dict[str, str], tuple[str, ...]]:
    """How vLLM finds the scheduler. Never a whole site-packages: its packages would hide those of vLLM."""
    if not server.pins:
        return {}, ()
    metrics = "for the counts of pins in /metrics also set PROMETHEUS_MULTIPROC_DIR to an empty folder"
    folder = Path(toolhub_agent.__file__).parents[1]
    if (folder / "toolhub").is_dir():
        return {}, (
            f"vLLM's environment needs the scheduler: {install_command(program='pip install --no-deps')}; {metrics}",
        )
    return {"PYTHONPATH": str(folder)}, (metrics,)


# --- NVIDIA Dynamo ----------------------------------------------------------------------------------------------------
# vLLM workers of NVIDIA Dynamo, which take vLLM's engine flags, and the frontend, which is their router.

_NOT_IN_DYNAMO = ("session_cache", "offload.ratio", "offload.write_policy", "disaggregation", "pins")


def dynamo_commands(profile: Profile, name: str, server: ServerProfile) -> list[LaunchCommand]:
    refuse_unsupported(name, server, _NOT_IN_DYNAMO)
    if profile.router is None or profile.router.kind != "dynamo":
        raise ConfigError("workers of Dynamo need `router: {kind: dynamo}`", key=f"{name}.engine")
    if len(server.nodes) > 1:
        raise ConfigError("a worker on several nodes is not known here", key=f"{name}.nodes")
    argv = [server.program or "python3", "-m", "dynamo.vllm", *flag("model", profile.model)]
    argv += flag("served-model-name", profile.served_name) + flag("discovery-backend", profile.router.discovery)
    # The frontend parses calls and thoughts, with its own parsers.
    argv += vllm_engine_flags(name, server.model_copy(update={"reasoning_parser": None}))
    argv += flag("dyn-tool-call-parser", server.tool_parser) + flag("dyn-reasoning-parser", server.reasoning_parser)
    argv += flag("kv-events-config", _kv_events(server))
    env = {**visible_gpus(server), "DYN_SYSTEM_PORT": str(server.port), **server.env}
    return [LaunchCommand(name, server.nodes[0], (*argv, *server.extra_args), env)]


def dynamo_frontend(router: RouterProfile) -> LaunchCommand:
    argv = ["python3", "-m", "dynamo.frontend", *flag("http-host", router.listens_on), *flag("http-port", router.port)]
    argv += flag("router-mode", router.policy) + flag("router-session-affinity-ttl-secs", router.affinity_s)
    argv += flag("discovery-backend", router.discovery)
    return LaunchCommand("frontend", router.node, (*argv, *router.extra_args))


def _kv_events(server: ServerProfile) -> dict[str, object]:
    if server.kv_events_port is None:
        return {"enable_kv_cache_events": False}
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://*:{server.kv_events_port}",
    }


# --- SGLang -----------------------------------------------------------------------------------------------------------
# SGLang's flags, from its documentation and sources; none could be run here.

# Where the nodes of one server meet.
_SGLANG_DIST_PORT = 20000
# The session cache is a feature of this tree only, and the server does not start without.
_SGLANG_SESSION_ENV = {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}
_NOT_IN_SGLANG = ("pins", "kv_events_port", "chunking.long_prompt_tokens")


def sglang_commands(profile: Profile, name: str, server: ServerProfile) -> list[LaunchCommand]:
    refuse_unsupported(name, server, _NOT_IN_SGLANG)
    if server.chunking.dynamic and server.pipeline_parallel == 1:
        raise ConfigError("dynamic chunks need pipeline_parallel on SGLang", key=f"{name}.chunking.dynamic")
    if server.session_cache and not server.prefix_caching:
        raise ConfigError("needs prefix_caching", key=f"{name}.session_cache")
    return [_sglang_command(profile, name, server, rank) for rank in range(len(server.nodes))]


def _sglang_command(profile: Profile, name: str, server: ServerProfile, rank: int) -> LaunchCommand:
    argv = [server.program or "python3", "-m", "sglang.launch_server", *flag("model-path", profile.model)]
    argv += flag("served-model-name", profile.served_name) + flag("host", server.listens_on)
    argv += flag("port", server.port) + _sglang_engine_flags(server) + _sglang_cache_flags(server)
    if server.disaggregation:
        argv += _sglang_disaggregation_flags(server.disaggregation)
    if len(server.nodes) > 1:
        argv += flag("nnodes", len(server.nodes)) + flag("node-rank", rank)
        argv += flag("dist-init-addr", f"{server.nodes[0]}:{_SGLANG_DIST_PORT}")
    title = name if len(server.nodes) == 1 else f"{name}, node {rank + 1} of {len(server.nodes)}"
    env = {**visible_gpus(server), **(_SGLANG_SESSION_ENV if server.session_cache else {}), **server.env}
    return LaunchCommand(title, server.nodes[rank], (*argv, *server.extra_args), env)


def _sglang_engine_flags(server: ServerProfile) -> list[str]:
    return [
        *flag("tp-size", server.tensor_parallel),
        *flag("pp-size", server.pipeline_parallel if server.pipeline_parallel > 1 else None),
        *flag("context-length", server.context_tokens),
        *flag("max-running-requests", server.max_running),
        *flag("mem-fraction-static", server.memory_share),
        *flag("dtype", server.dtype),
        *flag("kv-cache-dtype", server.kv_dtype),
        *flag("page-size", server.block_tokens),
        *flag("disable-cuda-graph", server.eager),
        *flag("chunked-prefill-size", server.chunking.tokens),
        *flag("enable-dynamic-chunking", server.chunking.dynamic),
        *flag("enable-priority-scheduling", server.priority),
        *flag("tool-call-parser", server.tool_parser),
        *flag("reasoning-parser", server.reasoning_parser),
        *flag("enable-metrics", server.metrics),
        *flag("enable-cache-report", server.cached_tokens),
    ]


def _sglang_cache_flags(server: ServerProfile) -> list[str]:
    tier = server.offload
    flags = flag("disable-radix-cache", not server.prefix_caching)
    flags += flag("enable-session-radix-cache", server.session_cache)
    if tier is None:
        return flags
    return [
        *flags,
        *flag("enable-hierarchical-cache"),
        *flag("hicache-size", tier.gib),
        *flag("hicache-ratio", tier.ratio),
        *flag("hicache-write-policy", tier.write_policy),
    ]


def _sglang_disaggregation_flags(half: Disaggregation) -> list[str]:
    return [
        *flag("disaggregation-mode", half.role),
        *flag("disaggregation-transfer-backend", half.transfer),
        *flag("disaggregation-bootstrap-port", half.port),
        *flag("disaggregation-ib-device", half.ib_device),
    ]


# --- llama.cpp --------------------------------------------------------------------------------------------------------
# llama.cpp's server, by the list of arguments in its README.

# The template tells how tools are called, so that no parser is named.
_NOT_IN_LLAMACPP = (
    *("tensor_parallel", "pipeline_parallel", "memory_share", "dtype", "block_tokens", "eager", "disaggregation"),
    *("priority", "pins", "session_cache", "tool_parser", "kv_events_port", "offload.ratio", "offload.write_policy"),
    *("chunking.dynamic", "chunking.long_prompt_tokens"),
)


def llamacpp_commands(profile: Profile, name: str, server: ServerProfile) -> list[LaunchCommand]:
    refuse_unsupported(name, server, _NOT_IN_LLAMACPP)
    argv = [server.program or "llama-server", *_llamacpp_model(profile.model), *flag("alias", profile.served_name)]
    argv += flag("host", server.listens_on) + flag("port", server.port) + flag("jinja")
    # One buffer for all slots: a conversation may use all of the context, as elsewhere.
    argv += flag("ctx-size", server.context_tokens) + flag("kv-unified") + flag("parallel", server.max_running)
    argv += flag("cache-type-k", server.kv_dtype) + flag("cache-type-v", server.kv_dtype)
    argv += flag("batch-size", server.chunking.tokens) + switch("cache-prompt", server.prefix_caching)
    argv += flag("cache-ram", server.offload.gib * 1024 if server.offload and server.offload.gib else None)
    argv += flag("metrics", server.metrics) + flag("reasoning-format", server.reasoning_parser)
    return [LaunchCommand(name, server.nodes[0], (*argv, *server.extra_args), {**visible_gpus(server), **server.env})]


def _llamacpp_model(model: str) -> list[str]:
    return flag("model" if model.endswith(".gguf") else "hf-repo", model)


# --- Routers ----------------------------------------------------------------------------------------------------------
# Routers in front of several servers, which keep a conversation where its prefix is cached.

_ROUTER_PROGRAMS = {
    "sgl-model-gateway": ("python3", "-m", "sglang_router.launch_router"),
    "vllm-router": ("vllm-router",),
}
_DISAGGREGATION_FLAGS = {"sgl-model-gateway": "pd-disaggregation", "vllm-router": "vllm-pd-disaggregation"}
_ROUTER_POLICIES = {
    # consistent_hashing goes by X-SMG-Routing-Key, consistent_hash by X-Session-ID; toolhub sends both.
    "sgl-model-gateway": (
        *("random", "round_robin", "power_of_two", "cache_aware", "bucket"),
        *("manual", "consistent_hashing"),
    ),
    "vllm-router": ("random", "round_robin", "cache_aware", "power_of_two", "consistent_hash"),
    "dynamo": ("round-robin", "random", "kv", "least-loaded"),
}


def router_command(profile: Profile, router: RouterProfile) -> LaunchCommand:
    _check_router(router)
    if router.kind == "dynamo":
        return dynamo_frontend(router)
    argv = [*_ROUTER_PROGRAMS[router.kind], *_router_workers(router, profile.servers)]
    argv += flag("host", router.listens_on) + flag("port", router.port)
    return LaunchCommand("router", router.node, (*argv, *router.extra_args))


def _check_router(router: RouterProfile) -> None:
    known = _ROUTER_POLICIES[router.kind]
    for name in ("policy", "decode_policy"):
        if (policy := getattr(router, name)) is not None and policy not in known:
            raise ConfigError(f"{router.kind} knows {', '.join(known)}", key=f"router.{name}")
    if router.kind == "dynamo":
        if router.decode_policy is not None:
            raise ConfigError("dynamo has one mode for all workers", key="router.decode_policy")
    elif router.affinity_s is not None or router.discovery is not None:
        key = "affinity_s" if router.affinity_s is not None else "discovery"
        raise ConfigError("only dynamo has that", key=f"router.{key}")


def _router_workers(router: RouterProfile, servers: Mapping[str, ServerProfile]) -> list[str]:
    halves = {role: [server for server in servers.values() if server.role() == role] for role in ("prefill", "decode")}
    if not any(halves.values()):
        return ["--worker-urls", *(server.url for server in servers.values()), *flag("policy", router.policy)]
    if not all(halves.values()) or sum(map(len, halves.values())) != len(servers):
        raise ConfigError("disaggregated servers need both halves and no others beside them", key="servers")
    argv = flag(_DISAGGREGATION_FLAGS[router.kind])
    for server in halves["prefill"]:
        assert server.disaggregation is not None
        # SGLang's halves meet at the bootstrap port; vLLM's router needs none for NIXL.
        port = server.disaggregation.port if server.engine == "sglang" else None
        argv += ["--prefill", server.url, *([str(port)] if port else [])]
    for server in halves["decode"]:
        argv += ["--decode", server.url]
    argv += flag("prefill-policy", router.policy)
    return argv + flag("decode-policy", router.decode_policy or router.policy)


# --- All commands -----------------------------------------------------------------------------------------------------
# From a profile to its command lines, in the order in which they are started.

_ENGINE_COMMANDS = {
    "vllm": vllm_commands,
    "sglang": sglang_commands,
    "dynamo": dynamo_commands,
    "llamacpp": llamacpp_commands,
}


def command_lines(profile: Profile) -> list[LaunchCommand]:
    """One per server and node, then the router's. Raises ConfigError for what an engine cannot do."""
    _check_profile(profile)
    lines = [
        line
        for name, server in profile.servers.items()
        for line in _ENGINE_COMMANDS[server.engine](profile, name, server)
    ]
    return [*lines, router_command(profile, profile.router)] if profile.router else lines


def front_url(profile: Profile) -> str:
    """Where requests go."""
    return f"{profile.router.url if profile.router else next(iter(profile.servers.values())).url}/v1"


def _check_profile(profile: Profile) -> None:
    if profile.router is None and any(server.role() for server in profile.servers.values()):
        raise ConfigError("disaggregated servers need a router", key="router")
    if profile.router is None and len(profile.servers) > 1:
        raise ConfigError(
            "several servers need a router; or list them all in the hub's `llm: endpoints:`", key="router"
        )
    taken: dict[tuple[str, int], str] = {}
    front = {"router": (profile.router.node, profile.router.port)} if profile.router else {}
    places = front | {name: (server.nodes[0], server.port) for name, server in profile.servers.items()}
    for name, place in places.items():
        if place in taken:
            raise ConfigError(f"has the same address as {taken[place]}; set its port", key=name)
        taken[place] = name
