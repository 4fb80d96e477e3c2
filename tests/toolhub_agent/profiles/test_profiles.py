"""Profiles become commands that a shell reads as they are meant, in the engines' own flags."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from toolhub_agent.decoding import load_recipes
from toolhub_agent.profiles import LaunchCommand, load_profile, profile_names

from toolhub.errors import ConfigError

pytestmark = pytest.mark.quick


def commands_of(name: str, *overrides: str) -> dict[str, LaunchCommand]:
    return {command.name: command for command in load_profile(name, overrides).commands}


def one(name: str, *overrides: str) -> LaunchCommand:
    (command,) = commands_of(name, *overrides).values()
    return command


def value(command: LaunchCommand, flag: str) -> str:
    return command.argv[command.argv.index(flag) + 1]


@pytest.mark.parametrize("name", profile_names())
def test_a_shell_reads_every_command_as_it_is_meant(name: str) -> None:
    for command in commands_of(name).values():
        variables = [f"{key}={text}" for key, text in command.env.items()]
        assert shlex.split(command.shell()) == [*variables, *command.argv]
        assert shlex.split(command.pretty().replace("\\\n", "")) == [*variables, *command.argv]
        assert not [word for word in command.argv if word.startswith(("{", "http://{")) and '"' not in word]


@pytest.mark.parametrize("name", [name for name in profile_names() if name.startswith(("vllm", "cpu"))])
def test_every_vllm_caches_prefixes_and_reports_it(name: str) -> None:
    for command in commands_of(name).values():
        if command.argv[:2] == ("vllm", "serve"):
            assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(command.argv)


def test_pins_bring_the_scheduler_and_where_vllm_finds_it() -> None:
    command = one("vllm-tp")
    assert value(command, "--scheduler-cls") == "toolhub_agent.vllm_plugin.PinScheduler"
    assert command.has_pins and not one("vllm").has_pins
    folder = Path(command.env["PYTHONPATH"])
    assert (folder / "toolhub_agent" / "vllm_plugin").is_dir()
    assert [path.name for path in folder.iterdir() if (path / "__init__.py").exists()] == ["toolhub_agent"]


def test_the_router_follows_what_is_set_for_its_servers() -> None:
    router = commands_of("vllm-replicas", "first.port=9001", "second.node=gpu2")["router"]
    at = router.argv.index("--worker-urls")
    assert router.argv[at + 1 : at + 3] == ("http://127.0.0.1:9001", "http://gpu2:8002")
    router = commands_of("sglang-disaggregated", "prefill-0.node=gpu1")["router"]
    at = router.argv.index("--prefill")
    assert router.argv[at + 1 : at + 3] == ("http://gpu1:30000", "8998")
    assert value(router, "--decode") == "http://decode-0:30001"


def test_a_list_of_lists_repeats_its_flag() -> None:
    router = commands_of("vllm-disaggregated")["router"]
    assert router.argv.count("--prefill") == router.argv.count("--decode") == 2


def test_requests_go_to_the_router_where_there_is_one() -> None:
    assert load_profile("vllm-replicas", ["router.port=9000"]).url == "http://127.0.0.1:9000/v1"
    assert load_profile("sglang").url == "http://127.0.0.1:30000/v1"


def test_a_server_on_this_machine_listens_on_loopback_only() -> None:
    assert value(one("vllm"), "--host") == "127.0.0.1"
    assert value(one("vllm", "node=gpu1"), "--host") == "0.0.0.0"


def test_a_bare_flag_is_set_for_all_commands_that_have_it_and_a_named_one_for_its_own() -> None:
    found = commands_of("vllm-replicas", "max-num-seqs=7", "second.max-num-seqs=9")
    assert (value(found["first"], "--max-num-seqs"), value(found["second"], "--max-num-seqs")) == ("7", "9")


def test_a_flag_that_no_command_has_is_set_for_the_servers_and_not_for_the_router() -> None:
    found = commands_of("vllm-replicas", "seed=3")
    assert [name for name, command in found.items() if "--seed" in command.argv] == ["first", "second"]
    assert value(one("vllm", "seed=3"), "--seed") == "3"


def test_values_are_yaml_and_an_empty_one_removes_the_flag() -> None:
    command = one(
        "vllm", "enforce-eager=true", "enable-chunked-prefill=", "override-config={a: 1}", "server.env.NAME=a b"
    )
    assert "--enforce-eager" in command.argv and "--enable-chunked-prefill" not in command.argv
    assert value(command, "--override-config") == '{"a":1}'
    assert command.shell().startswith("NAME='a b' vllm serve ")


@pytest.mark.parametrize("name", load_recipes())
def test_a_recipe_is_added_to_every_engine_and_to_no_router(name: str) -> None:
    recipe = load_recipes()[name]
    for engine, profile in {"vllm": "vllm-replicas", "sglang": "sglang-replicas"}.items():
        if engine not in recipe.engines:
            continue
        *servers, router = load_profile(profile, ["draft=a/draft"], name).commands
        for flag in recipe.engines[engine].flags:
            assert all(f"--{flag}" in server.argv for server in servers) and f"--{flag}" not in router.argv
        assert not [word for server in servers for word in server.argv if "{draft}" in word]


def test_a_flag_that_is_set_wins_over_the_recipe() -> None:
    (command,) = load_profile(
        "vllm", ["speculative-config={method: ngram, num_speculative_tokens: 2}"], "ngram"
    ).commands
    assert value(command, "--speculative-config") == '{"method":"ngram","num_speculative_tokens":2}'


def test_what_would_be_more_than_a_word_to_a_shell_is_quoted() -> None:
    assert "'a;rm -rf /'" in one("vllm", "model='a;rm -rf /'").shell()


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("vllm", "model=--trust-remote-code", "an engine reads a leading dash as a flag"),
        ("vllm", "tensor-parallel-size", "expected KEY=VALUE"),
        ("vllm", "port=[", "the value is not valid YAML"),
        ("vllm-replicas", "third.port=1", "no command 'third'; there are: first, second, router"),
        ("vllm-replicas", "second.port=8001", "second.*has the same address as first"),
        ("sglang_tp", "port=1", "did you mean 'sglang-tp'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(name: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_profile(name, [override])


def test_a_file_of_one_s_own_is_read_like_the_others(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    head = "description: mine\nchecked: not run\nmodel: m\nurl: http://{a.node}:1/v1\n"
    text = head + "commands: {a: {run: [x, '{model}']}}\n"
    path.write_text(text)
    assert one(str(path)).argv == ("x", "m")
    path.write_text(text.replace("checked", "chekced"))
    with pytest.raises(ConfigError, match=r"own\.yaml.*chekced"):
        load_profile(str(path))
