"""Whether this vLLM is one that the scheduler was made for. What it builds on is not public and changes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

SUPPORTED = "0.32"
_WAY_OUT = f"install vLLM {SUPPORTED}, or start the server without --scheduler-cls (it then keeps no pins)"

# Of each parent: methods, with the parameters that are passed or taken.
Needs = Mapping[str, Sequence[str]]


class UnsupportedVllm(RuntimeError):
    """The server must not start with this scheduler; the message says how it can."""


def check_version() -> None:
    """Raise UnsupportedVllm if vLLM is not there or not of the supported series."""
    try:
        from vllm.version import __version__  # type: ignore[import-not-found,unused-ignore]
    except ImportError as problem:
        raise UnsupportedVllm(
            f"PinScheduler runs inside vLLM {SUPPORTED}, and there is no vLLM in this Python environment ({problem})"
        ) from problem
    if not is_supported(__version__):
        raise UnsupportedVllm(f"PinScheduler supports vLLM {SUPPORTED}, but this is vLLM {__version__}; {_WAY_OUT}")


def is_supported(version: str) -> bool:
    """Also of a patch release or a local build: 0.32.1, 0.32.0+cpu."""
    return version == SUPPORTED or version.startswith((f"{SUPPORTED}.", f"{SUPPORTED}+"))


def check_features(needs: Mapping[type, Needs]) -> None:
    """Raise UnsupportedVllm naming what these classes lack: a fork may call itself by a supported version."""
    lacking = [
        f"{owner.__name__}.{method}({', '.join(parameters)})"
        for owner, methods in needs.items()
        for method, parameters in methods.items()
        if not _takes(getattr(owner, method, None), parameters)
    ]
    if lacking:
        raise UnsupportedVllm(f"this build of vLLM {SUPPORTED} has no {', '.join(lacking)}; {_WAY_OUT}")


def _takes(method: object, parameters: Sequence[str]) -> bool:
    return callable(method) and set(parameters) <= set(inspect.signature(method).parameters)
