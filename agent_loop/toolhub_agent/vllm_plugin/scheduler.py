"""vLLM's scheduler with pins. Import it from `toolhub_agent.vllm_plugin`, which checks vLLM's version first.

A finished request's blocks get their extra reference just before vLLM removes the request's own. When a request lacks
blocks, vLLM calls `KVCacheManager.allocate_slots`, gets None, and lets the request wait or preempts another. Pins yield
before vLLM gets that None. Expired pins end in every step and at every new request. An idle engine does neither, so it
keeps pins longer; no request is waiting for their blocks then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from vllm.v1.core.block_pool import BlockPool  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.core.kv_cache_manager import KVCacheManager  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.request import RequestStatus  # type: ignore[import-not-found,unused-ignore]

from toolhub_agent.vllm_plugin.metrics import PinMetrics, log_limits
from toolhub_agent.vllm_plugin.pins import Pins, pin_request, released_key, session_key
from toolhub_agent.vllm_plugin.support import PinSettings, RequiredMethods, UnsupportedVllm, check_features

_ANSWERED = frozenset(
    {RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION}
)
_NEEDS: dict[type, RequiredMethods] = {
    Scheduler: {
        "add_request": ["request"],
        "schedule": [],
        "reset_prefix_cache": [],
        "shutdown": [],
        "_free_request_blocks": ["request"],
    },
    KVCacheManager: {"allocate_slots": ["request", "num_new_tokens"], "get_blocks": ["request_id"]},
    BlockPool: {"touch": ["blocks"], "free_blocks": ["ordered_blocks"], "get_num_free_blocks": []},
}


class PinScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """The scheduler that vLLM would have used, with pins."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> PinScheduler:
        # vLLM decides on asynchronous scheduling itself. It then expects an asynchronous scheduler.
        if cls is PinScheduler and vllm_config.scheduler_config.async_scheduling:
            cls = AsyncPinScheduler
        made: PinScheduler = super().__new__(cls)
        return made

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_features(_NEEDS)
        if vllm_config.model_config.is_diffusion:
            raise UnsupportedVllm("PinScheduler does not support diffusion models; start without --scheduler-cls")
        settings = PinSettings.of(os.environ)
        super().__init__(vllm_config, *args, **kwargs)
        pool = self._pool = self.kv_cache_manager.block_pool
        blocks = pool.num_gpu_blocks - 1  # one is vLLM's own
        cap = int(blocks * settings.max_share)
        self._max_ttl = settings.max_ttl
        self._pins: Pins[Any] = Pins(pool, cap_blocks=cap, clock=time.monotonic)
        self._pin_metrics = PinMetrics(engine=self.parallel_config.data_parallel_index, clock=time.monotonic)
        self._frees = 0
        self._in_vain: tuple[str, int, int] | None = None
        self._free_then = 0
        self._allocate_slots = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_or_yield
        log_limits(cap_blocks=cap, all_blocks=blocks, max_ttl=settings.max_ttl)

    def add_request(self, request: Any) -> None:
        self._pins.expire()
        if (key := released_key(_extra(request))) is not None:
            self._pins.release(key)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._pins.expire()
        output = super().schedule(*args, **kwargs)
        self._pin_metrics.publish(self._pins.statistics())
        return output

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self._pins.clear()  # vLLM resets the pool only if no block is in use
        self._pin_metrics.publish(self._pins.statistics())
        return bool(super().reset_prefix_cache(*args, **kwargs))

    def shutdown(self) -> None:
        self._pins.clear()
        self._pin_metrics.publish(self._pins.statistics(), final=True)
        super().shutdown()

    def _free_request_blocks(self, request: Any) -> None:
        """Called when a request has finished, and when it is preempted."""
        self._frees += 1
        wanted = pin_request(_extra(request), request.request_id, max_ttl=self._max_ttl)
        if wanted is not None and _is_answered(request):
            self._pins.hold(wanted.key, self._full_blocks(request.request_id), wanted.ttl)
        super()._free_request_blocks(request)

    def _full_blocks(self, request_id: str) -> Iterator[Any]:
        """The blocks that the prefix cache can find again, the prefix first."""
        for group in self.kv_cache_manager.get_blocks(request_id).blocks:
            for block in group:
                # Some models have a second pool. That one does not run out.
                if block.block_hash is not None and not block.is_null and block.pool in (None, self._pool):
                    yield block

    def _allocate_or_yield(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        attempt = partial(self._allocate_slots, request, num_new_tokens, *args, **kwargs)
        blocks = attempt()
        if blocks is not None or not self._pins:
            return blocks
        # In every step vLLM tries again to admit the first waiting request. If all pins together were not enough, they
        # will not be enough until a request or a block becomes free.
        tried, free = (request.request_id, num_new_tokens, self._frees), self._pool.get_num_free_blocks()
        if tried == self._in_vain and free <= self._free_then:
            return None
        blocks = self._pins.make_room(attempt, last=session_key(_extra(request)))
        self._in_vain, self._free_then = (tried, free) if blocks is None else (None, 0)
        return blocks


class AsyncPinScheduler(PinScheduler, AsyncScheduler):  # type: ignore[misc,unused-ignore]
    """Schedules a step while the previous one still runs. It is vLLM's default."""


def _extra(request: Any) -> dict[str, Any] | None:
    sampling = request.sampling_params  # a pooling request has none
    return sampling.extra_args if sampling is not None else None


def _is_answered(request: Any) -> bool:
    """Whether the client got an answer, so that a next turn is likely."""
    if request.status == RequestStatus.FINISHED_ABORTED:
        # vLLM finds stop strings in the API server, which then aborts the request here.
        return bool(request.sampling_params.stop)
    return request.status in _ANSWERED
