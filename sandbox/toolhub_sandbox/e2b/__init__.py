"""Sandboxes at E2B: each is a virtual machine of the hosted service (or of one that speaks its protocol).

`open_e2b(settings)` gives the backend. The official SDK is loaded when the backend is opened, not before.
"""

from toolhub_sandbox.e2b.backend import E2BBackend, open_e2b
from toolhub_sandbox.e2b.sandbox import E2BSandbox

__all__ = ["E2BBackend", "E2BSandbox", "open_e2b"]
