"""How a server uses the web. Times are seconds, sizes are bytes."""

from __future__ import annotations

from pydantic import Field, field_validator
from toolhub_sandbox.proxy.rules import Rule

from toolhub.config.section import Count, Pause, Seconds, Section


class WebSettings(Section):
    """The `web` option of a server; equal settings share one pool in the whole hub."""

    connections: Count = 100
    keepalive: Count = 20
    """Idle connections that are kept."""
    keepalive_s: Seconds = 60
    http2: bool = True
    connect_s: Seconds = 10
    total_s: Seconds = 60
    """For one request with all its retries, redirects and waiting."""
    max_bytes: Count = 20 << 20
    """Of a decoded body; the rest is not read."""
    redirects: Count = 5
    retries: int = Field(default=3, ge=0)
    """Further tries after an error that may pass: connect errors, and 408, 425, 429 and 5xx of safe requests."""
    per_host: Count = 6
    """Requests to one host at a time, over all tasks."""
    pause_s: Pause = 0
    """Between the starts of two requests to one host."""
    allow_private: list[str] = Field(default_factory=list)
    """Hosts (`127.0.0.1:8000`, `*.intranet.example`) that may have addresses that are not public."""

    @field_validator("allow_private")
    @classmethod
    def _are_hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            Rule.of(host)
        return hosts
