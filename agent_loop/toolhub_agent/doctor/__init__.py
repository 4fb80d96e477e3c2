"""Looks at a model server as an agent would use it: what it is, what it caches, what can be told to it.

async with open_fleet(settings) as fleet:
    report = await examine(fleet.client(url), url, settings)
"""

from __future__ import annotations

from toolhub_agent.doctor.checks import DoctorReport, run_checks
from toolhub_agent.doctor.probe import CheckResult

__all__ = ["CheckResult", "DoctorReport", "run_checks"]
