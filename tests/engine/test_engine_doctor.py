"""Profiles on the real vLLM: its parser reads their flags, and a server started by one is found well."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from toolhub_agent.decoding import load_recipes
from toolhub_agent.profiles import LaunchCommand, load_profile, profile_names

from testbed.engine.install import VLLM, installed
from testbed.engine.server import EngineOptions, EngineServer, open_engine

# Imports of vLLM take most of it, and the doctor bounds itself.
PATIENCE_S = 300
PARSE = """
import dataclasses, json, sys, typing
from vllm import AsyncEngineArgs
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

def check_speculation(config):
    # vLLM reads these keys only when it loads the model.
    unknown = set(config) - {field.name for field in dataclasses.fields(SpeculativeConfig)}
    assert not unknown, unknown
    assert config["method"] in literals(SpeculativeMethod), config["method"]

def literals(kind):
    for each in typing.get_args(kind):
        yield from literals(each) if typing.get_args(each) else [each]

refused = {}
parser = make_arg_parser(FlexibleArgumentParser())
for name, argv in json.load(sys.stdin).items():
    try:
        arguments = parser.parse_args(argv)
        validate_parsed_serve_args(arguments)
        AsyncEngineArgs.from_cli_args(arguments)
        if arguments.speculative_config:
            check_speculation(arguments.speculative_config)
    except (SystemExit, Exception) as exc:
        refused[name] = repr(exc)
print(json.dumps(refused))
"""
# Dynamo's own; the rest of its workers' flags is vLLM's.
OF_DYNAMO = ("--discovery-backend", "--dyn-tool-call-parser", "--dyn-reasoning-parser")


def refused(commands: dict[str, list[str]]) -> dict[str, str]:
    """What vLLM's own parser says to each list of flags that it does not take."""
    python = installed().bin / "python"
    done = subprocess.run(
        [python, "-c", PARSE], input=json.dumps(commands), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def serve_arguments(line: LaunchCommand) -> list[str]:
    if line.argv[:2] == ("vllm", "serve"):
        return list(line.argv[2:])
    words = list(line.argv[3:])
    for flag in OF_DYNAMO:
        if flag in words:
            del words[words.index(flag) : words.index(flag) + 2]
    return words


def commands_of_vllm() -> dict[str, list[str]]:
    """Of every profile, and of every recipe for speculative decoding."""
    profiles = {name: load_profile(name) for name in profile_names()}
    recipes = [name for name, recipe in load_recipes().items() if "vllm" in recipe.engines]
    profiles |= {f"vllm with {name}": load_profile("vllm", ["draft=a/draft"], name) for name in recipes}
    return {
        f"{name}: {line.name}": serve_arguments(line)
        for name, profile in profiles.items()
        for line in profile.commands
        if line.argv[:2] == ("vllm", "serve") or "dynamo.vllm" in line.argv
    }


def test_vllms_own_parser_reads_every_flag_of_every_profile() -> None:
    commands = commands_of_vllm()
    profiles = {"vllm", "vllm-tp", "vllm-disaggregated", "cpu", "dynamo"}
    recipes = {f"vllm with {name}" for name in ("suffix", "ngram", "eagle3", "mtp")}
    assert {name.partition(":")[0] for name in commands} >= profiles | recipes
    wrong = {"wrong flag": ["a-model", "--enable-dynamic-chunking"], "wrong value": ["m", "--scheduling-policy", "x"]}
    wrong["wrong method"] = ["m", "--speculative-config", '{"method": "n-gram"}']
    wrong["wrong key"] = ["m", "--speculative-config", '{"method": "ngram", "lookup_min": 8}']
    assert refused(commands | wrong).keys() == wrong.keys()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine with the flags and variables of the profile `cpu`, but for its address and its model's place."""
    (line,) = load_profile("cpu").commands
    flags = list(line.argv[3:])
    for name in ("--host", "--port"):
        del flags[flags.index(name) : flags.index(name) + 2]
    options = EngineOptions(environment=line.env, arguments=flags)
    opened = open_engine(options, log=tmp_path_factory.mktemp("profiled") / "log")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as engine:
        yield engine


def test_the_doctor_finds_everything_at_an_engine_started_by_the_cpu_profile(
    profiled: EngineServer, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "toolhub", "doctor", "--llm", profiled.url, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["engine"]["detail"] == f"vLLM {VLLM}" and found["context"]["detail"] == "32768 tokens"
    notes = {name for name, finding in found.items() if finding["status"] == "note"}
    assert notes <= {"hint: retention", "native tool calls"}  # a stock scheduler, and a model that only babbles
    assert not [finding for finding in found.values() if finding["status"] == "weaker"]
