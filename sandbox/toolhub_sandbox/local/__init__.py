"""The backends that run on this machine: `local` (namespaces), `bwrap` and `subprocess` (limits only).

All three end in the same agent (see `toolhub_sandbox.inside`), and so in the same `LocalSandbox`.
"""

from toolhub_sandbox.local.backend import open_local

__all__ = ["open_local"]
