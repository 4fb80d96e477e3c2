"""What a server was not given and does without, in a way: it starts all the same, and its tools say so when called.

A module whose server can be in that state has `lacks(**options)`, for `toolhub doctor` to say it before a run begins.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lack:
    """option: that is not set, such as `sogou.secret_id`. variable: of the environment that it comes from elsewhere.

    loss: what follows from it, in words. is_needed: whether the server is of no use without it. tool: the only one that
    is concerned; empty if all are.
    """

    option: str
    variable: str
    loss: str
    is_needed: bool = False
    tool: str = ""
