"""The configuration: frozen models, and the only code that reads config files and the environment."""

from toolhub.config.load import load_config, parse_config, parse_server
from toolhub.config.models import Config, HubSettings, Limits, SandboxSettings
from toolhub.config.redact import redact
from toolhub.config.server import RestartSettings, ServerSpec, ToolRules, ToolSettings, Transport

__all__ = [
    "Config",
    "HubSettings",
    "Limits",
    "RestartSettings",
    "SandboxSettings",
    "ServerSpec",
    "ToolRules",
    "ToolSettings",
    "Transport",
    "load_config",
    "parse_config",
    "parse_server",
    "redact",
]
