"""A scheduler for stock vLLM that keeps a conversation's KV blocks while its tools run.

    PYTHONPATH=.../agent_loop vllm serve MODEL --scheduler-cls toolhub_agent.vllm_plugin.PinScheduler

A request with `"vllm_xargs": {"pin_ttl_s": 20, "session_id": "task-7"}` leaves its full blocks pinned for 20 s after
its end. Other requests do not evict them, so the session's next turn finds its prefix in the cache. A request with
`{"release_session": "task-7"}` ends that at once. Pins never delay another request: before a request has to wait or is
preempted for lack of blocks, pins yield, the one that would expire soonest first.

Environment: TOOLHUB_PIN_MAX_SHARE, the share of the KV cache that pins may take (0.5), and TOOLHUB_PIN_MAX_TTL_S, the
longest time of a pin (600). Counts are in the log. They are also in vLLM's /metrics if PROMETHEUS_MULTIPROC_DIR names a
folder (vLLM sets it itself for several API servers). vLLM's `kv_cache_usage_perc` counts pinned blocks as used.

vLLM has no separate permissions: every client that can send requests can pin and release, also for other sessions.

It runs in vLLM's environment, which may lack toolhub's dependencies, so nothing of toolhub is imported here. vLLM is
imported only for `PinScheduler`.
"""

from __future__ import annotations

from typing import Any

from toolhub_agent.vllm_plugin.support import check_version

__all__ = ["PinScheduler"]


def __getattr__(name: str) -> Any:
    """Check vLLM's version before importing parts that another version may lack."""
    if name != "PinScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_version()
    from toolhub_agent.vllm_plugin.scheduler import PinScheduler

    return PinScheduler
