"""Checks that the scheduler supports this vLLM, and reads the scheduler's settings.

The scheduler uses parts of vLLM that are not public and change. A scheduler class gets no options of its own, so its
settings are environment variables.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SUPPORTED = "0.32"
_ADVICE = f"install vLLM {SUPPORTED}, or start the server without --scheduler-cls (it then keeps no pins)"

# For each parent class: its methods with the parameters that are used.
RequiredMethods = Mapping[str, Sequence[str]]


class UnsupportedVllm(RuntimeError):
    """The server must not start with this scheduler. The message says how it can start."""


def check_version() -> None:
    """Raise UnsupportedVllm if vLLM is missing or not of the supported series."""
    try:
        from vllm.version import __version__  # type: ignore[import-not-found,unused-ignore]
    except ImportError as problem:
        raise UnsupportedVllm(
            f"PinScheduler runs inside vLLM {SUPPORTED}, and there is no vLLM in this Python environment ({problem})"
        ) from problem
    if not is_supported(__version__):
        raise UnsupportedVllm(f"PinScheduler supports vLLM {SUPPORTED}, but this is vLLM {__version__}; {_ADVICE}")


def is_supported(version: str) -> bool:
    """Whether a version is of the supported series; also patch releases and local builds: 0.32.1, 0.32.0+cpu."""
    return version == SUPPORTED or version.startswith((f"{SUPPORTED}.", f"{SUPPORTED}+"))


def check_features(needs: Mapping[type, RequiredMethods]) -> None:
    """Raise UnsupportedVllm with what these classes lack, because a fork may have the same version number."""
    lacking = [
        f"{owner.__name__}.{method}({', '.join(parameters)})"
        for owner, methods in needs.items()
        for method, parameters in methods.items()
        if not _takes(getattr(owner, method, None), parameters)
    ]
    if lacking:
        raise UnsupportedVllm(f"this build of vLLM {SUPPORTED} has no {', '.join(lacking)}; {_ADVICE}")


def _takes(method: object, parameters: Sequence[str]) -> bool:
    return callable(method) and set(parameters) <= set(inspect.signature(method).parameters)


MAX_SHARE = "TOOLHUB_PIN_MAX_SHARE"
MAX_TTL_S = "TOOLHUB_PIN_MAX_TTL_S"


@dataclass(frozen=True, slots=True)
class PinSettings:
    """max_share: of the KV cache's blocks, 0 to 1. max_ttl: seconds; longer pins are cut to it."""

    max_share: float = 0.5
    max_ttl: float = 600.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PinSettings:
        """Read the settings. Raises ValueError with the variable's name if a value is not a number in its range."""
        return cls(
            max_share=_number(environment, MAX_SHARE, cls().max_share, most=1.0),
            max_ttl=_number(environment, MAX_TTL_S, cls().max_ttl, most=86_400.0),
        )


def _number(environment: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # nan is neither
        raise ValueError(f"{name} must be a number from 0 to {most:g}, not {text!r}")
    return value
