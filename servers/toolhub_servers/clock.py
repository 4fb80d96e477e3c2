"""An MCP server that tells the time in any time zone."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server, make_tool

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)

# Zones that were asked for. There are some hundred names; others are refused.
_ZONES: dict[str, ZoneInfo] = {}


class LocalTime(BaseModel):
    timezone: str
    datetime: str
    day_of_week: str
    is_dst: bool


class Conversion(BaseModel):
    source: LocalTime
    target: LocalTime
    time_difference: str


def utc_now() -> datetime:
    return datetime.now(UTC)


def create_server(*, now: Callable[[], datetime] = utc_now) -> MCPServer:
    """Return the server. now: the current time, with a time zone."""

    async def get_current_time(timezone: str = "UTC") -> LocalTime:
        """Get the current time in a time zone, given by its IANA name such as Europe/Berlin."""
        zone = await zone_named(timezone)
        return local_time(now().astimezone(zone))

    async def convert_time(source_timezone: str, time: str, target_timezone: str) -> Conversion:
        """Convert a time between two time zones, given by their IANA names.

        `time` is HH:MM, meaning today in the source time zone, or a date and time such as 2026-03-01T14:30.
        """
        source, target = await zone_named(source_timezone), await zone_named(target_timezone)
        return convert(parse_time(time, now().astimezone(source)), target)

    tools = [
        make_tool(get_current_time, annotations=READ_ONLY, is_structured=True),
        make_tool(convert_time, annotations=READ_ONLY, is_structured=True),
    ]
    return make_server("toolhub-clock", tools=tools)


async def zone_named(name: str) -> ZoneInfo:
    """Return the zone, or raise a ToolError that names similar ones. Reads the disk only for a new name."""
    zone = _ZONES.get(name)
    if zone is None:
        zone = _ZONES[name] = await to_thread.run_sync(find_zone, name)
    return zone


def find_zone(name: str) -> ZoneInfo:
    """Return the zone, or raise a ToolError that names similar ones. Reads the disk."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: `name` is a directory of zones, such as America
        pass
    known = {zone.lower(): zone for zone in available_timezones()}
    near = [known[match] for match in difflib.get_close_matches(name.lower(), known)]
    hint = f"did you mean {' or '.join(near)}?" if near else "give an IANA name such as Europe/Berlin"
    raise ToolError(f"unknown time zone {name!r}; {hint}")


def parse_time(text: str, today: datetime) -> datetime:
    """Return `text` as a time in the zone of `today`."""
    try:
        if len(text) <= len("HH:MM"):
            clock = datetime.strptime(text, "%H:%M").time()
            return datetime.combine(today.date(), clock, today.tzinfo)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ToolError(f"cannot read the time {text!r}; give HH:MM or YYYY-MM-DDTHH:MM") from None
    if moment.tzinfo is not None:
        raise ToolError(f"the time {text!r} must have no UTC offset: the source time zone gives it")
    return moment.replace(tzinfo=today.tzinfo)


def convert(moment: datetime, zone: ZoneInfo) -> Conversion:
    try:
        moved = moment.astimezone(zone)
    except OverflowError:
        raise ToolError(f"{moment.isoformat()} has no equivalent in {zone}: out of range") from None
    difference = (moved.utcoffset() or timedelta()) - (moment.utcoffset() or timedelta())
    hours = difference / timedelta(hours=1)
    return Conversion(source=local_time(moment), target=local_time(moved), time_difference=f"{hours:+g}h")


def local_time(moment: datetime) -> LocalTime:
    return LocalTime(
        timezone=str(moment.tzinfo),
        datetime=moment.isoformat(timespec="seconds"),
        day_of_week=moment.strftime("%A"),
        is_dst=bool(moment.dst()),
    )


def main() -> None:
    serve(make_parser("clock", "Tells the time in any time zone."), create_server)
