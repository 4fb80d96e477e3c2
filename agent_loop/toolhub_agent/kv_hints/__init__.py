"""Hints to model servers about a conversation's KV cache while its tools run.

An agent reports what happens (`signals`). Each conversation has a `HintSession`. It plans what to send and when, by
the rules in `policy`. A `HintClient` sends it. Engines accept different requests: `engines` has one adapter per engine.
"""

from __future__ import annotations
