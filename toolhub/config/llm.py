"""The `llm` section: the model servers, their request limits, and hints to them. Times are seconds."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from toolhub.config.redact import long_enough, named_secrets
from toolhub.config.section import Count, Length, Pause, Seconds, Section, Text

EngineName = Literal["auto", "vllm", "sglang", "dynamo", "llamacpp", "generic"]


def check_url(url: str) -> str:
    """Return an http(s) address without a trailing slash. Raises ValueError for other texts."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not contain a user name or password; use api_key")
    return url.rstrip("/")


Url = Annotated[str, AfterValidator(check_url)]


class HintSettings(Section):
    """Hints to the model server about a conversation's KV cache while its tools run."""

    mode: Literal["off", "auto", "on"] = "auto"
    """`auto` switches itself off where no gain is measured; `on` never does."""
    timeout_s: Seconds = 1.5
    """For one hint. A hint that takes longer is given up; it never fails a turn."""
    min_prefix_tokens: Length = 2000
    """For a shorter prefix, computing it again costs less than a hint."""
    max_prefetches: Count = 3
    """Prefetch requests per tool wait: each has the engine compute the next prompt's prefix."""
    max_load: Count = 8
    """Requests running or waiting on an endpoint above which it gets no prefetch."""
    lead_time_s: Pause = 0.5
    """A prefetch should end this long before the tools do."""
    max_pin_s: Seconds = 120
    """The longest retention asked of an engine that takes one."""
    use_pin_scheduler: bool = False
    """Send `vllm_xargs.pin_ttl_s`; needs `--scheduler-cls toolhub_agent.vllm_plugin.PinScheduler` on the server."""
    lmcache: Url | None = None
    """An LMCache coordinator's address."""


class AdmissionSettings(Section):
    """How many agents may use an engine at once, by what its KV cache holds."""

    enabled: bool = False
    """If the conversations together need more tokens than the cache holds, the youngest wait between their turns."""
    capacity_tokens: Count | None = None
    """What one endpoint's cache holds; None: as its `/metrics` says, else found when tokens are evicted."""
    target: Annotated[float, Field(gt=0, le=1)] = 0.95
    """The share of the capacity that conversations may fill."""
    max_pause_s: Seconds = 300
    """A turn that waited this long goes before all others."""


class LlmSettings(Section):
    """The model servers behind the agent loop and the LLM proxy. They all serve the same model."""

    endpoints: list[Url] = Field(min_length=1)
    """Base addresses, e.g. http://127.0.0.1:8000/v1."""
    model: str | None = Field(default=None, min_length=1)
    """None: the only model of the first endpoint."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Sent as bearer token."""
    headers: Annotated[dict[str, Text], BeforeValidator(lambda value: value or {})] = Field(
        default_factory=dict, repr=False
    )
    """Sent with every request."""
    engine: EngineName = "auto"
    """`auto` asks the endpoint."""
    attempts: Count = 6
    """Requests for one turn, the first included, if the endpoint fails."""
    connect_timeout_s: Seconds = 10
    """For connecting to an endpoint."""
    attempt_timeout_s: Seconds = 600
    """For one request, from sending it to its last token."""
    total_timeout_s: Seconds = 1800
    """For a turn: all attempts, the pauses between them, and the wait for a place at the endpoint."""
    max_in_flight: Count | None = None
    """Requests at once per endpoint; None: as many as the engine runs without a queue, else 64."""
    target_waiting: Length = 2
    """Requests that may wait inside an engine. If more wait, the endpoint gets fewer at once."""
    metrics_interval_s: Seconds = 1
    """Time between two looks at an engine's `/metrics`."""
    load_imbalance_threshold: Count = 16
    """A conversation moves to another endpoint only if its own has this many more requests."""
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    """Admission of whole conversations by the tokens that they keep in the engine's cache."""
    hints: HintSettings = Field(default_factory=HintSettings)
    """What the engine is told about KV caches while tools run."""

    @property
    def secrets(self) -> frozenset[str]:
        """The key, and the values of headers whose names contain KEY, TOKEN or the like."""
        key = [self.api_key.get_secret_value()] if self.api_key else []
        return long_enough([*key, *named_secrets(self.headers)])
