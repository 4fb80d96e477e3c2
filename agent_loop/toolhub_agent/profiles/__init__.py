"""Model server profiles: what a server is meant to do, and the command lines that make it do so.

for line in command_lines(load_profile("vllm", ["model=Qwen/Qwen3-8B"])):
    print(line.shell())
"""

from __future__ import annotations

from toolhub_agent.profiles.commands import LaunchCommand, command_lines, front_url
from toolhub_agent.profiles.profile import Profile, load_profile, profile_names

__all__ = ["LaunchCommand", "Profile", "command_lines", "front_url", "load_profile", "profile_names"]
