"""Reading `/metrics`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.llm.concurrency import EngineLoad, read_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a b} c"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0 1700000000000
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101",num_gpu_blocks_override="9"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="101",num_gpu_blocks_override="9"} 1.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 3.0
vllm:num_preemptions_created{engine="1",model_name="m"} 1.7e+09
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 12.0
sglang:num_queue_reqs{model_name="m"} 7.0
sglang:token_usage{model_name="m"} 0.875
sglang:max_total_num_tokens{model_name="m"} 471258.0
sglang:num_retracted_requests_total{model_name="m"} 4.0
"""
LLAMACPP = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:kv_cache_usage_ratio 0.125\n"


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (VLLM, EngineLoad(2, 7, 0.5, 3200, 5)),
        (SGLANG, EngineLoad(7, 12, 0.875, 471258, 4)),
        (LLAMACPP, EngineLoad(2, 1, 0.125)),
    ],
    ids=["vllm", "sglang", "llama.cpp"],
)
def test_each_engines_queue_and_cache_are_read_and_added_up_over_ranks(text, reading):
    assert read_metrics(text) == reading


def test_a_page_without_a_queue_tells_nothing():
    assert read_metrics("python_gc_objects_collected_total 5\n") is None


def test_a_cache_whose_size_is_not_known_yet_is_unknown():
    text = 'vllm:num_requests_waiting 0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
    assert read_metrics(text) == EngineLoad(0, 0)


def test_nonsense_counts_as_nothing():
    text = "vllm:num_requests_waiting NaN\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc -1\n"
    assert read_metrics(text) == EngineLoad(0, 0, 0.0)


@given(st.text(max_size=200))
def test_no_page_is_an_error(text):
    read_metrics(f"vllm:num_requests_waiting {text}\n{text}")
