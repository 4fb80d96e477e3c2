"""From a profile to its command lines, in the order in which they are started."""

from __future__ import annotations

from toolhub.errors import ConfigError
from toolhub_agent.profiles import dynamo, llamacpp, routers, sglang, vllm
from toolhub_agent.profiles.line import Line
from toolhub_agent.profiles.settings import Profile

_ENGINES = {"vllm": vllm.lines, "sglang": sglang.lines, "dynamo": dynamo.lines, "llamacpp": llamacpp.lines}


def command_lines(profile: Profile) -> list[Line]:
    """One per server and node, then the router's. Raises ConfigError for what an engine cannot do."""
    _check(profile)
    lines = [
        line for name, server in profile.servers.items() for line in _ENGINES[server.engine](profile, name, server)
    ]
    return [*lines, routers.line(profile, profile.router)] if profile.router else lines


def front_url(profile: Profile) -> str:
    """Where requests go."""
    return f"{profile.router.url if profile.router else next(iter(profile.servers.values())).url}/v1"


def _check(profile: Profile) -> None:
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
