"""`toolhub llm-command`, as a user runs it."""

from __future__ import annotations

import shlex

from toolhub_command import Shell


def test_without_a_name_it_lists_what_there_is(shell: Shell) -> None:
    listed = shell("llm-command")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in ("vllm-tp", "sglang-disaggregated", "dynamo", "llamacpp", "cpu"))


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
