"""vLLM workers of NVIDIA Dynamo, which take vLLM's engine flags, and the frontend, which is their router."""

from __future__ import annotations

from toolhub.errors import ConfigError
from toolhub_agent.profiles import vllm
from toolhub_agent.profiles.flags import flag, refuse, visible
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Profile, Router, Server

_UNKNOWN = ("session_cache", "offload.ratio", "offload.write_policy", "disaggregation", "pins")


def lines(profile: Profile, name: str, server: Server) -> list[Line]:
    refuse(name, server, _UNKNOWN)
    if profile.router is None or profile.router.kind != "dynamo":
        raise ConfigError("workers of Dynamo need `router: {kind: dynamo}`", key=f"{name}.engine")
    if len(server.nodes) > 1:
        raise ConfigError("a worker on several nodes is not known here", key=f"{name}.nodes")
    argv = [server.program or "python3", "-m", "dynamo.vllm", *flag("model", profile.model)]
    argv += flag("served-model-name", profile.served_name) + flag("discovery-backend", profile.router.discovery)
    # The frontend parses calls and thoughts, with its own parsers.
    argv += vllm.engine_flags(name, server.model_copy(update={"reasoning_parser": None}))
    argv += flag("dyn-tool-call-parser", server.tool_parser) + flag("dyn-reasoning-parser", server.reasoning_parser)
    argv += flag("kv-events-config", _events(server))
    env = {**visible(server), "DYN_SYSTEM_PORT": str(server.port), **server.env}
    return [Line(name, server.nodes[0], (*argv, *server.extra_args), env)]


def frontend(router: Router) -> Line:
    argv = ["python3", "-m", "dynamo.frontend", *flag("http-host", router.listens_on), *flag("http-port", router.port)]
    argv += flag("router-mode", router.policy) + flag("router-session-affinity-ttl-secs", router.affinity_s)
    argv += flag("discovery-backend", router.discovery)
    return Line("frontend", router.node, (*argv, *router.extra_args))


def _events(server: Server) -> dict[str, object]:
    if server.kv_events_port is None:
        return {"enable_kv_cache_events": False}
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://*:{server.kv_events_port}",
    }
