"""One adapter per kind of model server, and how to find out which kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolhub_agent.hints.adapters.base import Adapter, Command, get_json
from toolhub_agent.hints.adapters.dynamo import Dynamo
from toolhub_agent.hints.adapters.llamacpp import LlamaCpp
from toolhub_agent.hints.adapters.sglang import SGLang, arguments
from toolhub_agent.hints.adapters.vllm import Vllm, version_of
from toolhub_agent.llm.transport import engine_root

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName

__all__ = ["Adapter", "Command", "adapter_of", "identify"]


def adapter_of(engine: EngineName, endpoint: str, *, pin: bool = False) -> Adapter:
    """pin: see `HintSettings.pin`. `auto` has to be identified first; here it is any server."""
    match engine:
        case "vllm":
            return Vllm(endpoint, pin=pin)
        case "sglang":
            return SGLang(endpoint)
        case "dynamo":
            return Dynamo(endpoint)
        case "llamacpp":
            return LlamaCpp(endpoint)
        case _:
            return Adapter(endpoint)


async def identify(http: httpx2.AsyncClient, endpoint: str) -> EngineName:
    """Ask a server what it is: `generic` where nothing is recognised. Raises httpx2.HTTPError if it does not answer."""
    root = engine_root(endpoint)
    if version_of((await get_json(http, f"{root}/version")).get("version")):
        return "vllm"
    if await arguments(http, root):
        return "sglang"
    if "default_generation_settings" in await get_json(http, f"{root}/props"):
        return "llamacpp"
    if isinstance((await get_json(http, f"{root}/health")).get("instances"), list):
        return "dynamo"
    return "generic"
