"""A scheduler for stock vLLM that keeps a conversation's KV blocks while its tools run.

    PYTHONPATH=.../agent_loop vllm serve MODEL --scheduler-cls toolhub_agent.vllm_plugin.PinScheduler

A request with `"vllm_xargs": {"pin_ttl_s": 20, "session_id": "task-7"}` leaves its full blocks pinned for 20 s from its
end, so other requests do not evict them and the session's next turn finds its prefix in the cache. One with
`{"release_session": "task-7"}` ends that at once. Pins never cost another request its turn: they yield, the one that
would end soonest first, before a request has to wait or is preempted for want of blocks.

Environment: TOOLHUB_PIN_MAX_SHARE, the share of the KV cache that pins may take (0.5), and TOOLHUB_PIN_MAX_TTL_S, the
longest a pin lasts (600). Counts are in the log and, where PROMETHEUS_MULTIPROC_DIR names a folder (vLLM sets it itself
for several API servers), in /metrics beside vLLM's. vLLM's `kv_cache_usage_perc` counts pinned blocks as used.

vLLM has one place of trust: whoever can send it requests can pin and release, also in another's name.

It runs in vLLM's environment, which need not have toolhub's dependencies: nothing of toolhub is imported here. vLLM is
imported only for `PinScheduler`.
"""

from __future__ import annotations

from typing import Any

from toolhub_agent.vllm_plugin.support import check_version

__all__ = ["PinScheduler"]


def __getattr__(name: str) -> Any:
    """Look at vLLM's version before anything of it is used that another version may not have."""
    if name != "PinScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_version()
    from toolhub_agent.vllm_plugin.scheduler import PinScheduler

    return PinScheduler
