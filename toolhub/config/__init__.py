"""The configuration: frozen models, and loading them from config files and the environment."""

from toolhub.config.agent import AgentSettings, Sampling, SubAgentSettings
from toolhub.config.llm import EngineName, HintSettings, LlmSettings
from toolhub.config.load import load_config, parse_config, parse_server
from toolhub.config.models import Config, HubSettings, Limits, SharedResultsSettings
from toolhub.config.redact import redact
from toolhub.config.sandbox import AllowedHosts, E2BSettings, SandboxProfile, SandboxSettings
from toolhub.config.server import RestartSettings, ServerSpec, ToolRules, ToolSettings, Transport
from toolhub.config.speculation import SpeculationMode, SpeculationSettings

__all__ = [
    "AgentSettings",
    "AllowedHosts",
    "Config",
    "E2BSettings",
    "EngineName",
    "HintSettings",
    "HubSettings",
    "Limits",
    "LlmSettings",
    "RestartSettings",
    "Sampling",
    "SandboxProfile",
    "SandboxSettings",
    "ServerSpec",
    "SharedResultsSettings",
    "SpeculationMode",
    "SpeculationSettings",
    "SubAgentSettings",
    "ToolRules",
    "ToolSettings",
    "Transport",
    "load_config",
    "parse_config",
    "parse_server",
    "redact",
]
