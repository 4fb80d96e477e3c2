"""Checks a model server as an agent would use it: its engine, its prefix cache, and the hints that it accepts.

`decoding` compares it with another server, to see whether a recipe for speculative decoding is worth it.

async with open_endpoint_pool(settings) as pool:
    report = await run_checks(pool.transport(url), settings)
"""

from __future__ import annotations

from toolhub_agent.doctor.checks import DoctorReport, run_checks
from toolhub_agent.doctor.probe import CheckResult

__all__ = ["CheckResult", "DoctorReport", "run_checks"]
