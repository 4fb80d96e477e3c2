"""Profiles: their meaning becomes the flags of each engine, and what an engine cannot do is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from toolhub_agent.profiles import LaunchCommand, command_lines, front_url, load_profile, profile_names

from toolhub.errors import ConfigError

pytestmark = pytest.mark.quick


def lines_of(name: str, *overrides: str) -> list[LaunchCommand]:
    return command_lines(load_profile(name, overrides))


def one(name: str, *overrides: str) -> LaunchCommand:
    (line,) = lines_of(name, *overrides)
    return line


def value(line: LaunchCommand, flag: str) -> str:
    return line.argv[line.argv.index(flag) + 1]


def write(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text("description: mine\nchecked: not at all\nmodel: a-model\n" + text)
    return str(path)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_becomes_commands_a_shell_reads_as_they_are_meant(name: str) -> None:
    for line in lines_of(name):
        variables = [f"{key}={text}" for key, text in line.env.items()]
        assert shlex.split(line.shell()) == [*variables, *line.argv]
        assert shlex.split(line.pretty().replace("\\\n", "")) == [*variables, *line.argv]


@pytest.mark.parametrize("name", profile_names())
def test_every_server_of_a_profile_caches_prefixes_and_tells_of_it(name: str) -> None:
    profile = load_profile(name)
    for server in profile.servers.values():
        assert server.prefix_caching and server.metrics and server.cached_tokens


def test_vllm_gets_its_words_for_each_meaning() -> None:
    line = one("vllm", "tensor_parallel=4", "kv_dtype=fp8", "reasoning_parser=qwen3", "metrics=false")
    assert line.argv[:3] == ("vllm", "serve", "Qwen/Qwen3-4B-Instruct-2507")
    assert value(line, "--tensor-parallel-size") == "4" and value(line, "--kv-cache-dtype") == "fp8"
    assert value(line, "--kv-offloading-size") == "32" and value(line, "--reasoning-parser") == "qwen3"
    flags = {
        *("--enable-prefix-caching", "--enable-chunked-prefill", "--long-prefill-token-threshold-adaptive"),
        *("--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--disable-log-stats"),
    }
    assert flags <= set(line.argv)


def test_prefix_caching_that_is_off_is_said_to_be_off() -> None:
    assert "--no-enable-prefix-caching" in one("vllm", "prefix_caching=false").argv
    assert "--disable-radix-cache" in one("sglang", "prefix_caching=false", "session_cache=false").argv
    assert "--no-cache-prompt" in one("llamacpp", "prefix_caching=false").argv


def test_pins_bring_the_scheduler_and_where_vllm_finds_it() -> None:
    line = one("vllm-tp")
    assert value(line, "--scheduler-cls") == "toolhub_agent.vllm_plugin.PinScheduler"
    assert value(line, "--scheduling-policy") == "priority"
    folder = Path(line.env["PYTHONPATH"])
    assert (folder / "toolhub_agent" / "vllm_plugin").is_dir()
    assert [path.name for path in folder.iterdir() if (path / "__init__.py").exists()] == ["toolhub_agent"]


def test_the_session_cache_of_sglang_comes_with_the_tree_that_it_needs() -> None:
    line = one("sglang-tp")
    assert "--enable-session-radix-cache" in line.argv and line.env["SGLANG_ENABLE_UNIFIED_RADIX_TREE"] == "1"
    assert "--enable-hierarchical-cache" in line.argv and value(line, "--hicache-ratio") == "2"
    assert "--enable-session-radix-cache" not in one("sglang", "session_cache=false").argv
    assert one("sglang", "session_cache=false").env == {}


def test_a_server_on_two_nodes_becomes_a_command_for_each() -> None:
    first, second = lines_of("sglang-disaggregated")[:2]
    assert (first.node, second.node) == ("prefill-0", "prefill-1")
    assert [value(line, "--node-rank") for line in (first, second)] == ["0", "1"]
    assert {value(line, "--dist-init-addr") for line in (first, second)} == {"prefill-0:20000"}


def test_only_the_first_node_of_vllm_serves_requests(tmp_path: Path) -> None:
    path = write(tmp_path, "common: {engine: vllm, nodes: [a, b], tensor_parallel: 16}")
    head, other = lines_of(path)
    assert "--port" in head.argv and "--headless" not in head.argv
    assert "--headless" in other.argv and "--port" not in other.argv
    assert value(other, "--master-addr") == "a" and value(other, "--nnodes") == "2"


def test_the_router_is_told_of_both_halves() -> None:
    router = lines_of("sglang-disaggregated")[-1]
    at = router.argv.index("--prefill")
    assert router.argv[at + 1 : at + 3] == ("http://prefill-0:30000", "8998")
    assert value(router, "--decode") == "http://decode-0:30001"
    router = lines_of("vllm-disaggregated")[-1]
    assert router.argv.count("--prefill") == router.argv.count("--decode") == 2
    assert "8998" not in router.argv and value(router, "--decode-policy") == "consistent_hash"


def test_requests_go_to_the_router_where_there_is_one() -> None:
    assert front_url(load_profile("vllm-replicas")) == "http://127.0.0.1:8000/v1"
    assert front_url(load_profile("sglang")) == "http://127.0.0.1:30000/v1"


def test_a_server_on_this_machine_listens_to_it_alone() -> None:
    assert value(one("vllm"), "--host") == "127.0.0.1"
    assert value(one("vllm", "nodes=[gpu1]"), "--host") == "0.0.0.0"


def test_what_a_worker_of_dynamo_does_not_take_is_left_to_the_frontend() -> None:
    worker, _, frontend = lines_of("dynamo", "reasoning_parser=qwen3")
    assert value(worker, "--dyn-tool-call-parser") == "hermes" and value(worker, "--dyn-reasoning-parser") == "qwen3"
    assert not {"--tool-call-parser", "--reasoning-parser", "--port", "--enable-prompt-tokens-details"} & {*worker.argv}
    assert value(frontend, "--router-mode") == "kv" and value(frontend, "--http-port") == "8000"


def test_a_bare_key_is_set_for_all_servers_and_a_named_one_for_its_own() -> None:
    first, second, _ = lines_of("vllm-replicas", "max_running=7", "second.max_running=9")
    assert (value(first, "--max-num-seqs"), value(second, "--max-num-seqs")) == ("7", "9")
    prefill = lines_of("sglang-disaggregated", "max_running=7")[0]
    assert value(prefill, "--max-running-requests") == "7"  # though the profile has another for it


def test_keys_inside_of_keys_can_be_set() -> None:
    line = one("vllm", "chunking.tokens=4096", "env.NAME=a b", "model=/models/x", "served_name=m")
    assert value(line, "--max-num-batched-tokens") == "4096" and value(line, "--long-prefill-token-threshold") == "2048"
    assert "NAME='a b' vllm serve /models/x" in line.shell() and value(line, "--served-model-name") == "m"


def test_what_would_be_more_than_a_word_to_a_shell_is_quoted() -> None:
    assert "'a;rm -rf /'" in one("vllm", "model='a;rm -rf /'").shell()


def test_what_would_be_read_as_a_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="not begin with a dash"):
        load_profile("vllm", ["model=--trust-remote-code"])


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("sglang", "pins=true", "server.pins: sglang has no flag"),
        ("vllm", "session_cache=true", "server.session_cache: vllm has no flag"),
        ("llamacpp", "tensor_parallel=2", "server.tensor_parallel: llamacpp has no flag"),
        ("sglang", "chunking.dynamic=true", "need pipeline_parallel"),
        ("vllm", "chunking={dynamic: true}", "need chunking.long_prompt_tokens"),
        ("vllm", "pins=true", "not tried together with offload"),
        ("vllm-replicas", "second.port=8001", "same address as first"),
        ("vllm-replicas", "router=", "several servers need a router"),
        ("vllm-replicas", "router.policy=kv", "vllm-router knows random"),
        ("dynamo", "router.kind=vllm-router", "need `router: {kind: dynamo}`"),
        ("sglang-replicas", "first.disaggregation={role: decode}", "need both halves"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(name: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lines_of(name, override)


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sglang-tp'"):
        load_profile("sglang_tp")


def test_an_unknown_key_is_told_with_the_file_and_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"vllm\.yaml.*did you mean 'tensor_parallel'"):
        load_profile("vllm", ["tensor_paralel=2"])


def test_an_override_without_a_value_is_told() -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        load_profile("vllm", ["tensor_parallel"])


def test_a_file_of_ones_own_is_read_like_the_others(tmp_path: Path) -> None:
    line = one(write(tmp_path, "common: {engine: llamacpp, offload: {gib: 2}}"))
    assert value(line, "--hf-repo") == "a-model" and value(line, "--cache-ram") == "2048"
