"""The clock server, with a clock that stands still."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from mcp import Client
from server_calls import answer, refusal
from toolhub_servers import clock

pytestmark = [pytest.mark.anyio, pytest.mark.quick]
NOON_IN_JULY = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(clock.create_server(now=lambda: NOON_IN_JULY)) as client:
        yield client


async def test_the_current_time_is_utc_unless_a_zone_is_named(client: Client) -> None:
    told = json.loads(await answer(client, "get_current_time"))
    assert told == {
        "timezone": "UTC",
        "datetime": "2026-07-01T12:00:00+00:00",
        "day_of_week": "Wednesday",
        "is_dst": False,
    }


async def test_the_current_time_follows_summer_time(client: Client) -> None:
    told = json.loads(await answer(client, "get_current_time", timezone="Europe/Berlin"))
    assert (told["datetime"], told["is_dst"]) == ("2026-07-01T14:00:00+02:00", True)


async def test_a_bare_time_is_converted_as_today(client: Client) -> None:
    arguments = {"source_timezone": "America/New_York", "time": "20:30", "target_timezone": "Asia/Kolkata"}
    told = json.loads(await answer(client, "convert_time", **arguments))
    assert told["source"]["datetime"] == "2026-07-01T20:30:00-04:00"
    assert told["target"]["datetime"] == "2026-07-02T06:00:00+05:30"
    assert told["time_difference"] == "+9.5h"


async def test_a_full_date_uses_the_offset_of_that_date(client: Client) -> None:
    arguments = {"source_timezone": "Europe/Berlin", "time": "2026-01-15T09:00", "target_timezone": "UTC"}
    told = json.loads(await answer(client, "convert_time", **arguments))
    assert told["target"]["datetime"] == "2026-01-15T08:00:00+00:00"


async def test_an_unknown_zone_is_refused_with_similar_names(client: Client) -> None:
    text = await refusal(client, "get_current_time", timezone="Europe/Berln")
    assert "unknown time zone 'Europe/Berln'; did you mean Europe/Berlin" in text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "America", "", "no\0where"])
async def test_what_is_no_zone_name_is_refused_with_a_text(client: Client, name: str) -> None:
    assert "unknown time zone" in await refusal(client, "get_current_time", timezone=name)


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ("25:00", "cannot read the time '25:00'; give HH:MM"),
        ("noon sharp", "cannot read the time"),
        ("2026-01-15T09:00+01:00", "must have no UTC offset"),
        ("9999-12-31T23:59", "out of range"),
    ],
)
async def test_an_impossible_time_is_refused_with_the_reason(client: Client, time: str, reason: str) -> None:
    arguments = {"source_timezone": "America/New_York", "time": time, "target_timezone": "Asia/Tokyo"}
    assert reason in await refusal(client, "convert_time", **arguments)
