"""SGLang's flags, from its documentation and sources; none could be run here."""

from __future__ import annotations

from toolhub.errors import ConfigError
from toolhub_agent.profiles.flags import flag, refuse, visible
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Disaggregation, Profile, Server

# Where the nodes of one server meet.
_MEETING_PORT = 20000
# The session cache is a feature of this tree only, and the server does not start without.
_SESSION_TREE = {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}
_UNKNOWN = ("pins", "kv_events_port", "chunking.long_prompt_tokens")


def lines(profile: Profile, name: str, server: Server) -> list[Line]:
    refuse(name, server, _UNKNOWN)
    if server.chunking.dynamic and server.pipeline_parallel == 1:
        raise ConfigError("dynamic chunks need pipeline_parallel on SGLang", key=f"{name}.chunking.dynamic")
    if server.session_cache and not server.prefix_caching:
        raise ConfigError("needs prefix_caching", key=f"{name}.session_cache")
    return [_line(profile, name, server, rank) for rank in range(len(server.nodes))]


def _line(profile: Profile, name: str, server: Server, rank: int) -> Line:
    argv = [server.program or "python3", "-m", "sglang.launch_server", *flag("model-path", profile.model)]
    argv += flag("served-model-name", profile.served_name) + flag("host", server.listens_on)
    argv += flag("port", server.port) + _engine_flags(server) + _cache_flags(server)
    if server.disaggregation:
        argv += _half_flags(server.disaggregation)
    if len(server.nodes) > 1:
        argv += flag("nnodes", len(server.nodes)) + flag("node-rank", rank)
        argv += flag("dist-init-addr", f"{server.nodes[0]}:{_MEETING_PORT}")
    title = name if len(server.nodes) == 1 else f"{name}, node {rank + 1} of {len(server.nodes)}"
    env = {**visible(server), **(_SESSION_TREE if server.session_cache else {}), **server.env}
    return Line(title, server.nodes[rank], (*argv, *server.extra_args), env)


def _engine_flags(server: Server) -> list[str]:
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


def _cache_flags(server: Server) -> list[str]:
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


def _half_flags(half: Disaggregation) -> list[str]:
    return [
        *flag("disaggregation-mode", half.role),
        *flag("disaggregation-transfer-backend", half.transfer),
        *flag("disaggregation-bootstrap-port", half.port),
        *flag("disaggregation-ib-device", half.ib_device),
    ]
