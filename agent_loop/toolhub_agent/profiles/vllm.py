"""vLLM's flags. Each was read by the argument parser of the version that the test engine has."""

from __future__ import annotations

from pathlib import Path

import toolhub_agent
from toolhub.errors import ConfigError
from toolhub_agent.profiles.flags import flag, refuse, switch, visible
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Disaggregation, Profile, Server
from toolhub_runtime import install_command

SCHEDULER = "toolhub_agent.vllm_plugin.PinScheduler"
# Other than the API's port; vLLM's own default.
_MASTER_PORT = 29501
_UNKNOWN = ("session_cache", "offload.ratio", "offload.write_policy", "disaggregation.ib_device", "kv_events_port")


def lines(profile: Profile, name: str, server: Server) -> list[Line]:
    refuse(name, server, _UNKNOWN)
    if server.pins and (server.offload or server.disaggregation):
        raise ConfigError("not tried together with offload or disaggregation", key=f"{name}.pins")
    return [_line(profile, name, server, rank) for rank in range(len(server.nodes))]


def _line(profile: Profile, name: str, server: Server, rank: int) -> Line:
    argv = [server.program or "vllm", "serve", profile.model]
    argv += api_flags(profile, server) if rank == 0 else flag("headless")
    argv += engine_flags(name, server) + _node_flags(server, rank)
    environment, notes = _scheduler(server)
    side_channel = _side_channel(server, rank)
    title = name if len(server.nodes) == 1 else f"{name}, node {rank + 1} of {len(server.nodes)}"
    env = {**visible(server), **environment, **side_channel, **server.env}
    return Line(title, server.nodes[rank], (*argv, *server.extra_args), env, notes)


def api_flags(profile: Profile, server: Server) -> list[str]:
    """Those of its HTTP server."""
    return [
        *flag("served-model-name", profile.served_name),
        *flag("host", server.listens_on),
        *flag("port", server.port),
        *flag("enable-prompt-tokens-details", server.cached_tokens),
        *(flag("enable-auto-tool-choice") + flag("tool-call-parser", server.tool_parser) if server.tool_parser else []),
    ]


def engine_flags(name: str, server: Server) -> list[str]:
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
        *flag("kv-transfer-config", _transfer(name, server.disaggregation)),
    ]


def _transfer(name: str, half: Disaggregation | None) -> dict[str, str] | None:
    if half is None:
        return None
    if half.transfer != "nixl":
        raise ConfigError("of vLLM's connectors only nixl is known here", key=f"{name}.disaggregation.transfer")
    return {"kv_connector": "NixlConnector", "kv_role": "kv_producer" if half.role == "prefill" else "kv_consumer"}


def _side_channel(server: Server, rank: int) -> dict[str, str]:
    """Its own default is localhost, which another machine cannot ask."""
    if server.disaggregation is None:
        return {}
    port = server.disaggregation.port
    host = {"VLLM_NIXL_SIDE_CHANNEL_HOST": server.nodes[rank]}
    return host if port is None else {**host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}


def _node_flags(server: Server, rank: int) -> list[str]:
    if len(server.nodes) == 1:
        return []
    return [
        *flag("nnodes", len(server.nodes)),
        *flag("node-rank", rank),
        *flag("master-addr", server.nodes[0]),
        *flag("master-port", _MASTER_PORT),
    ]


def _scheduler(server: Server) -> tuple[dict[str, str], tuple[str, ...]]:
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
