"""`toolhub llm-command`, as a user runs it."""

from __future__ import annotations

import json
import shlex

from toolhub_command import Shell


def test_without_a_name_it_lists_what_there_is(shell: Shell) -> None:
    listed = shell("llm-command")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in ("vllm-tp", "sglang-disaggregated", "dynamo", "llamacpp", "cpu"))
    assert all(name in listed.stdout for name in ("--decode", "suffix", "ngram", "eagle3", "mtp"))


def test_what_it_prints_is_a_script_a_shell_can_read(shell: Shell) -> None:
    done = shell("llm-command", "vllm", "--set", "model=/models/mine", "--set", "tensor-parallel-size=2")
    assert done.returncode == 0
    words = shlex.split(done.stdout, comments=True)
    assert words[:3] == ["vllm", "serve", "/models/mine"] and words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "# When it is up: toolhub doctor --llm http://127.0.0.1:8000/v1" in done.stdout


def test_programs_get_each_command_in_parts(shell: Shell) -> None:
    told = shell.json("llm-command", "vllm-disaggregated")
    assert [command["node"] for command in told["commands"]] == [
        *("prefill-a", "prefill-b", "decode-a", "decode-b", "router")
    ]
    command = told["commands"][0]
    variables = [f"{name}={value}" for name, value in command["env"].items()]
    assert shlex.split(command["shell"]) == [*variables, *command["argv"]]
    assert told["url"] == "http://router:8000/v1"


def test_who_lets_other_machines_in_is_told(shell: Shell) -> None:
    local, remote = shell.together(["llm-command", "vllm"], ["llm-command", "vllm", "--set", "node=gpu1"])
    assert "ask for no key" in remote.stdout and "ask for no key" not in local.stdout


def test_an_unknown_profile_is_refused_with_near_names(shell: Shell) -> None:
    assert "did you mean 'llamacpp'" in shell.refusal("llm-command", "llama-cpp")


def test_a_recipe_comes_with_its_hazards_and_the_way_to_measure_it(shell: Shell) -> None:
    done = shell("llm-command", "vllm", "--decode", "ngram")
    words = shlex.split(done.stdout, comments=True)
    speculation = json.loads(words[words.index("--speculative-config") + 1])
    assert (speculation["method"], speculation["prompt_lookup_min"]) == ("ngram", 8)
    assert "# - structured outputs: with prompt_lookup_min 2 about half of the tool calls" in done.stdout
    assert "toolhub doctor --llm http://127.0.0.1:8000/v1 --against URL" in done.stdout
    told = shell.json("llm-command", "sglang", "--decode", "mtp")
    assert told["decode"]["name"] == "mtp" and told["decode"]["for_engine"]["hazards"]


def test_a_recipe_that_cannot_be_used_is_refused_with_the_reason(shell: Shell) -> None:
    assert "--set draft=MODEL" in shell.refusal("llm-command", "vllm", "--decode", "eagle3")
    assert "is for vllm, which 'sglang' does not start" in shell.refusal("llm-command", "sglang", "--decode", "suffix")
    assert "did you mean 'ngram'" in shell.refusal("llm-command", "vllm", "--decode", "n-gram")
    assert "--decode needs a profile" in shell.refusal("llm-command", "--decode", "ngram")
