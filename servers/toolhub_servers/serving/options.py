"""The options of a server: validated when it is made, and what is missing is reported before a run begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MissingOption:
    """option: that is not set, such as `sogou.secret_id`. variable: of the environment that it comes from elsewhere.

    loss: what follows from it, in words. is_needed: whether the server is of no use without it. tool: the only one that
    is concerned; empty if all are.
    """

    option: str
    variable: str
    loss: str
    is_needed: bool = False
    tool: str = ""
