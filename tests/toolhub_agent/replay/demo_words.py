"""What the agent of the included recording says. Change it here, then run record_demo.py."""

from __future__ import annotations

import json
from typing import Any

QUESTION = (
    "For how many hours did the lamp of Holm Skerry Light burn in the longest night of 1931, and how many litres of "
    "paraffin did it take? Answer with both numbers, each to one decimal."
)


def call(server: str, tool: str, **arguments: Any) -> str:
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{json.dumps(arguments)}\n</arguments>\n</use_mcp_tool>"
    )


def read(path: str) -> str:
    return call("files", "read_file", path=path)


_RECKONING = """\
from datetime import datetime, timedelta

lit, out = datetime(1931, 12, 21, 15, 41), datetime(1931, 12, 22, 8, 53)
dark = timedelta(minutes=24)
hours = (out - lit - dark) / timedelta(hours=1)
print(f"burning: {hours:.2f} h")
for name, rate in (("measured at the station", 0.62), ("maker's catalogue", 0.55)):
    print(f"{name}: {hours * rate:.2f} l")
"""

_CHECK = """\
december = 321
nights = 31
print(f"a night of December: {december / nights:.2f} l")
for rate in (0.62, 0.55):
    print(f"at {rate} l/h: {december / nights / rate:.1f} h a night")
"""

WORDS = (
    "Two numbers are asked for: the hours in which the lamp burned, and its paraffin. I need the times of that night, "
    "the consumption of the burner that was in use in 1931, and something to check the result with. I note the plan "
    "first, and the date of this work.\n\n"
    + call("clock", "get_current_time", timezone="UTC")
    + "\n"
    + call(
        "task_planner",
        "add_todo",
        titles=[
            "Find when the lamp was lit and put out in the longest night of 1931",
            "Find what the burner of 1931 consumed",
            "Reckon, and check against a second source",
        ],
    ),
    "Nothing is known yet, so I search for both facts at once; neither search needs the other's result.\n\n"
    + call("tool-google-search", "google_search", q="Holm Skerry longest night 1931 lamp lit put out")
    + "\n"
    + call("tool-google-search", "google_search", q="Holm Skerry burner litres of paraffin an hour"),
    "The keeper's log has the night itself, and a page about the lamp has its consumption. What a search shows of a "
    "page is not enough to rely on: I read both as a whole.\n\n" + read("keepers-log-1931.md") + "\n" + read("lamp.md"),
    "Two things would have been missed in an extract. The lamp stood dark from 02:10 to 02:34 while a mantle was "
    "changed, and the burner takes no paraffin then. And there are two figures for its consumption: 0.55 litres in the "
    "maker's catalogue, 0.62 measured at the station. I reckon with both.\n\n"
    + call("stateless_python", "python", code=_RECKONING),
    "16.8 hours; 10.4 litres by the measured figure, 9.2 by the catalogue's. The stores of that winter should tell "
    "which of them is right.\n\n"
    + call("tool-google-search", "google_search", q="Holm Skerry stores paraffin December 1931")
    + "\n"
    + read("stores-1931.md"),
    "In December 321 litres were burned in the lamp. If that is divided by the nights, the hours of a night follow for "
    "each of the two figures, and the log says how long such nights were.\n\n"
    + call("stateless_python", "python", code=_CHECK)
    + "\n"
    + call("task_planner", "list_todos"),
    "The nights of late December were a little over 17 hours long by the log. With 0.62 litres an hour the stores of "
    "December make 16.7 hours a night, which fits a month of nights of that length with the lamp dark now and then; "
    "with 0.55 they would make 18.8 hours, longer than any night of the year. So the station's own figure holds.\n\n"
    "From 15:41 to 08:53 are 17.2 hours, less 24 minutes in the dark: 16.8 hours, and 16.8 times 0.62 is 10.4 "
    "litres.\n\n\\boxed{16.8 hours, 10.4 litres}",
)
