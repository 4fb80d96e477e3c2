"""llama.cpp's server, by the list of arguments in its README."""

from __future__ import annotations

from toolhub_agent.profiles.flags import flag, refuse, switch, visible
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Profile, Server

# The template tells how tools are called, so that no parser is named.
_UNKNOWN = (
    *("tensor_parallel", "pipeline_parallel", "memory_share", "dtype", "block_tokens", "eager", "disaggregation"),
    *("priority", "pins", "session_cache", "tool_parser", "kv_events_port", "offload.ratio", "offload.write_policy"),
    *("chunking.dynamic", "chunking.long_prompt_tokens"),
)


def lines(profile: Profile, name: str, server: Server) -> list[Line]:
    refuse(name, server, _UNKNOWN)
    argv = [server.program or "llama-server", *_model(profile.model), *flag("alias", profile.served_name)]
    argv += flag("host", server.listens_on) + flag("port", server.port) + flag("jinja")
    # One buffer for all slots: a conversation may use all of the context, as elsewhere.
    argv += flag("ctx-size", server.context_tokens) + flag("kv-unified") + flag("parallel", server.max_running)
    argv += flag("cache-type-k", server.kv_dtype) + flag("cache-type-v", server.kv_dtype)
    argv += flag("batch-size", server.chunking.tokens) + switch("cache-prompt", server.prefix_caching)
    argv += flag("cache-ram", server.offload.gib * 1024 if server.offload and server.offload.gib else None)
    argv += flag("metrics", server.metrics) + flag("reasoning-format", server.reasoning_parser)
    return [Line(name, server.nodes[0], (*argv, *server.extra_args), {**visible(server), **server.env})]


def _model(model: str) -> list[str]:
    return flag("model" if model.endswith(".gguf") else "hf-repo", model)
