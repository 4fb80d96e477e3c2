"""What a profile says: the meaning, not the flags of an engine. Unknown keys are errors; sizes are tokens or GiB."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from toolhub.config.section import Count, Length, Section, Text

Engine = Literal["vllm", "sglang", "dynamo", "llamacpp"]
"""`dynamo`: vLLM as a worker of NVIDIA Dynamo."""
RouterKind = Literal["sgl-model-gateway", "vllm-router", "dynamo"]
Port = Annotated[int, Field(ge=1, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]


def _check_word(text: str) -> str:
    """What begins with a dash would be read as a flag."""
    if not text or text.startswith("-") or not text.isprintable():
        raise ValueError("must be a name or a path, and not begin with a dash")
    return text


Word = Annotated[str, AfterValidator(_check_word)]


class Chunking(Section):
    """Prefill in chunks, so that a long prompt does not make the answers of others wait."""

    tokens: Count | None = None
    """The largest chunk; None: the engine's own."""
    dynamic: bool = False
    """The chunk follows the load (vLLM) or what is computed already (SGLang, with pipeline_parallel)."""
    long_prompt_tokens: Count | None = None
    """vLLM: prompts longer than this get chunks of this size while others wait; a fair share at least if `dynamic`."""


class Offload(Section):
    """A second tier for KV blocks in the host's memory. Either gib or ratio."""

    gib: Count | None = None
    ratio: Annotated[float, Field(gt=0)] | None = None
    """SGLang: times the size of the cache on the accelerator."""
    write_policy: Literal["write_back", "write_through", "write_through_selective"] | None = None

    @model_validator(mode="after")
    def _has_one_size(self) -> Offload:
        if (self.gib is None) == (self.ratio is None):
            raise ValueError("name one size: gib or ratio")
        return self


class Disaggregation(Section):
    """One half of a server that is split into prefill and decode."""

    role: Literal["prefill", "decode"]
    transfer: Literal["nixl", "mooncake"] = "nixl"
    port: Port | None = None
    """SGLang: where decode servers ask for a transfer. vLLM: NIXL's side channel; None: its own (5600)."""
    ib_device: Word | None = None


class Server(Section):
    """One model server. nodes: the hosts that it spans; the first one answers requests."""

    engine: Engine
    program: Word | None = None
    """Instead of `vllm`, `python3` or `llama-server` on the PATH."""
    nodes: list[Word] = Field(default=["127.0.0.1"], min_length=1)
    port: Port = 8000
    gpus: list[Length] = []
    """Those it may see; empty: all."""
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_tokens: Count | None = None
    max_running: Count | None = None
    """Requests at once."""
    memory_share: Share | None = None
    """Of the accelerator's memory."""
    dtype: Word | None = None
    kv_dtype: Word | None = None
    block_tokens: Count | None = None
    """Of the KV cache; a prefix is reused in whole blocks."""
    eager: bool = False
    """Neither compile nor capture graphs: a quick start, slower answers."""
    prefix_caching: bool = True
    chunking: Chunking = Chunking()
    offload: Offload | None = None
    disaggregation: Disaggregation | None = None
    priority: bool = False
    """Serve by the priority of requests; agents' prefill-aheads then come last."""
    pins: bool = False
    """toolhub's scheduler for vLLM, which keeps a conversation's blocks while its tools run."""
    session_cache: bool = False
    """SGLang: what belongs to a live session is evicted last."""
    metrics: bool = True
    cached_tokens: bool = True
    """Tell with each answer how much of its prompt was in the cache."""
    tool_parser: Word | None = None
    reasoning_parser: Word | None = None
    kv_events_port: Port | None = None
    """Where a worker tells a KV-aware router what it keeps."""
    env: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], Text] = {}
    extra_args: list[Text] = []
    """Put behind all others, as they are."""

    @property
    def is_local(self) -> bool:
        return len(self.nodes) == 1 and is_loopback(self.nodes[0])

    @property
    def listens_on(self) -> str:
        return self.nodes[0] if self.is_local else "0.0.0.0"  # noqa: S104 - others are meant to reach it

    @property
    def url(self) -> str:
        return f"http://{self.nodes[0]}:{self.port}"

    def role(self) -> str | None:
        return self.disaggregation.role if self.disaggregation else None


class Router(Section):
    """What stands in front of several servers and keeps a conversation where its prefix is."""

    kind: RouterKind
    node: Word = "127.0.0.1"
    port: Port = 8080
    policy: Word | None = None
    """None: the router's own."""
    decode_policy: Word | None = None
    """For the decode half; None: the same."""
    affinity_s: Count | None = None
    """Dynamo: how long an idle session keeps its worker."""
    discovery: Literal["file", "etcd"] | None = None
    """Dynamo: how workers and router find each other; `file` needs one machine and no service."""
    extra_args: list[Text] = []

    @property
    def listens_on(self) -> str:
        return self.node if is_loopback(self.node) else "0.0.0.0"  # noqa: S104 - others are meant to reach it

    @property
    def url(self) -> str:
        return f"http://{self.node}:{self.port}"


class Profile(Section):
    """A way to serve one model."""

    description: str
    checked: str
    """Against which versions the flags were checked, and what could not be."""
    model: Word
    served_name: Word | None = None
    """What requests call it; None: the same."""
    servers: dict[str, Server] = Field(min_length=1)
    router: Router | None = None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
