"""Retries, politeness and deadlines on a clock that jumps when nothing else can happen. The sockets are real."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest
from toolhub_servers.web.client import INITIAL_S, JITTER_S, LONGEST_S, is_passing, next_try
from toolhub_servers.web.errors import BadStatus, Unreachable, WebTimeout
from toolhub_servers.web.host_limits import HostLimits
from trio.testing import MockClock
from web_stage import Asked, Hangup, http, open_client, open_origin, script

pytestmark = pytest.mark.anyio

# Virtual seconds: reached only by a test that waits in vain.
FOR_EVER = 1e6


@pytest.fixture
def anyio_backend():
    return "trio", {"clock": MockClock(autojump_threshold=0.01)}


class Stopwatch:
    """Virtual seconds since it was made."""

    def __init__(self) -> None:
        self._start = anyio.current_time()

    @property
    def seconds(self) -> float:
        return anyio.current_time() - self._start


# --- rules ------------------------------------------------------------------------------------------------------------


def test_only_what_may_pass_is_asked_again():
    assert [status for status in range(400, 600) if is_passing(status)] == [408, 425, 429, *range(500, 600)]


@pytest.mark.parametrize(
    ("failure", "safe", "unsafe"),
    [
        (Unreachable("no connection"), True, True),
        (Unreachable("no such name", is_lasting=True), False, False),
        (Unreachable("broke", sent=True), True, False),
        (BadStatus("", status=503), True, False),
        (BadStatus("", status=429), True, False),
        (BadStatus("", status=404), False, False),
        (WebTimeout(""), False, False),
        (KeyError(""), False, False),
    ],
)
def test_what_was_sent_goes_again_only_if_it_is_safe(failure, safe, unsafe):
    assert next_try(failure, is_safe=True, left=60) is safe
    assert next_try(failure, is_safe=False, left=60) is unsafe


def test_a_host_that_says_when_is_asked_then_unless_that_is_too_late():
    told = BadStatus("", status=503, retry_after=30)
    assert 30 <= next_try(told, is_safe=True, left=60) <= 30 + JITTER_S
    assert next_try(told, is_safe=True, left=30) is False


# --- retries ----------------------------------------------------------------------------------------------------------


async def test_backoff_grows_and_has_jitter():
    times = []

    async def answer(asked: Asked) -> bytes:
        times.append(anyio.current_time())
        return http(200 if len(times) == 4 else 500)

    with anyio.fail_after(FOR_EVER):
        async with open_origin(answer) as origin, open_client(origin) as web:
            await web.get(origin.url())
    pauses = [after - before for before, after in zip(times, times[1:], strict=False)]
    for number, pause in enumerate(pauses):
        assert INITIAL_S * 2**number <= pause <= min(LONGEST_S, INITIAL_S * 2**number + JITTER_S) + 0.01
    assert web.statistics().retries == 3


async def test_when_retries_end_the_last_reason_is_told():
    answers = script(Hangup(), http(500), http(503, b"down for maintenance", Retry_After="1"))
    with anyio.fail_after(FOR_EVER):
        async with open_origin(answers) as origin, open_client(origin, retries=2) as web:
            reason = f"^127.0.0.1:{origin.port} answered 503 Service Unavailable \\(try 3\\)$"
            with pytest.raises(BadStatus, match=reason) as ended:
                await web.get(origin.url())
            assert (ended.value.status, ended.value.text) == (503, "down for maintenance")
            assert ended.value.retry_after == 1
            assert len(origin.asked) == 3


async def test_retry_after_decides_when():
    answers = script(http(429, Retry_After="7"), http(body=b"ok"))
    with anyio.fail_after(FOR_EVER):
        async with open_origin(answers) as origin, open_client(origin) as web:
            watch = Stopwatch()
            assert (await web.get(origin.url())).body == b"ok"
            assert 7 <= watch.seconds <= 7 + JITTER_S + 0.01


async def test_a_date_in_retry_after_decides_when():
    later = datetime.now(UTC) + timedelta(seconds=50)
    answers = script(http(503, Retry_After=later.strftime("%a, %d %b %Y %H:%M:%S GMT")), http())
    with anyio.fail_after(FOR_EVER):
        async with open_origin(answers) as origin, open_client(origin) as web:
            watch = Stopwatch()
            await web.get(origin.url())
            assert 10 <= watch.seconds <= 50 + JITTER_S + 0.01  # the seconds that the test itself takes are missing


async def test_a_host_that_asks_for_more_time_than_is_left_is_given_up_at_once():
    with anyio.fail_after(FOR_EVER):
        async with open_origin(script(http(429, Retry_After="90"))) as origin, open_client(origin) as web:
            watch = Stopwatch()
            with pytest.raises(BadStatus, match="429 Too Many Requests$") as told:
                await web.get(origin.url(), timeout=60)
            assert (told.value.retry_after, len(origin.asked)) == (90, 1)
            assert watch.seconds < 1


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 418, 422, 451])
async def test_no_other_status_is_asked_for_again(status):
    with anyio.fail_after(FOR_EVER):
        async with open_origin(script(http(status))) as origin, open_client(origin) as web:
            with pytest.raises(BadStatus):
                await web.get(origin.url())
            assert len(origin.asked) == 1


async def test_a_post_is_sent_again_only_if_its_caller_says_that_it_is_safe():
    with anyio.fail_after(FOR_EVER):
        async with open_origin(script(http(502), http(502), http())) as origin, open_client(origin) as web:
            with pytest.raises(BadStatus):
                await web.request("POST", origin.url(), json={})
            assert len(origin.asked) == 1
            assert (await web.request("POST", origin.url(), json={}, is_safe=True)).status == 200
            assert len(origin.asked) == 3


async def test_after_the_retries_a_caller_who_wants_no_error_gets_the_last_reply():
    with anyio.fail_after(FOR_EVER):
        async with open_origin(script(http(500, b"a"), http(502, b"b"))) as origin:
            async with open_client(origin, retries=1) as web:
                reply = await web.get(origin.url(), raise_for_status=False)
                assert (reply.status, reply.body) == (502, b"b")


async def test_the_deadline_covers_the_retries_and_tells_the_last_reason():
    with anyio.fail_after(FOR_EVER):
        async with open_origin(script(http(500))) as origin, open_client(origin, retries=50) as web:
            watch = Stopwatch()
            with pytest.raises(WebTimeout, match=r"within 20 s \(tries: \d+; the last that ended: .*answered 500"):
                await web.get(origin.url(), timeout=20)
            assert watch.seconds == pytest.approx(20, abs=0.01)


# --- politeness -------------------------------------------------------------------------------------------------------


async def test_the_deadline_covers_the_wait_for_a_turn():
    async def answer(asked: Asked) -> bytes:
        await anyio.sleep(50)
        return http()

    with anyio.fail_after(FOR_EVER):
        async with open_origin(answer) as origin, open_client(origin, per_host=1) as web:
            async with anyio.create_task_group() as asking:
                asking.start_soon(web.get, origin.url("/first"))
                await anyio.wait_all_tasks_blocked()
                watch = Stopwatch()
                with pytest.raises(WebTimeout, match="within 5 s$"):
                    await web.get(origin.url("/second"), timeout=5)
                assert watch.seconds == pytest.approx(5, abs=0.01)
            assert [asked.target for asked in origin.asked] == ["/first"]


async def test_requests_to_a_host_start_in_their_order_with_the_pause_between():
    starts = []

    async def answer(asked: Asked) -> bytes:
        starts.append((asked.target, anyio.current_time()))
        return http()

    with anyio.fail_after(FOR_EVER):
        async with open_origin(answer) as origin, open_client(origin, pause_s=3, per_host=2) as web:
            watch = Stopwatch()
            start = anyio.current_time()
            async with anyio.create_task_group() as asking:
                for number in range(5):
                    asking.start_soon(web.get, origin.url(f"/{number}"))
                    await anyio.wait_all_tasks_blocked()
            assert [target for target, _ in starts] == [f"/{number}" for number in range(5)]
            assert [at - start for _, at in starts] == pytest.approx([0, 3, 6, 9, 12], abs=0.05)
            assert watch.seconds < 13


async def test_a_host_that_asks_for_quiet_gets_it_from_everybody_and_other_hosts_do_not():
    times: dict[str, float] = {}

    async def answer(asked: Asked) -> bytes:
        times[asked.target] = anyio.current_time()
        return http(429, Retry_After="30") if asked.target == "/first" else http()

    with anyio.fail_after(FOR_EVER):
        async with open_origin(answer) as origin, open_origin(answer) as other:
            async with open_client(origin, other, retries=0) as web:
                start = anyio.current_time()
                with pytest.raises(BadStatus):
                    await web.get(origin.url("/first"))
                await web.get(other.url("/elsewhere"))
                await web.get(origin.url("/later"))
                with pytest.raises(BadStatus):
                    await web.get(origin.url("/first"))
                with pytest.raises(BadStatus, match=r"asked for a pause of 30 s, longer than the time left$") as told:
                    await web.get(origin.url("/hurried"), timeout=5)
    assert times["/elsewhere"] - start < 1
    assert 30 <= times["/later"] - start < 31
    assert told.value.status == 429
    assert told.value.retry_after == pytest.approx(30, abs=0.1)
    assert "/hurried" not in times


async def test_no_host_is_left_alone_for_longer_than_minutes():
    hosts = HostLimits(1, 0)
    with anyio.fail_after(FOR_EVER):
        async with hosts.rate_slot("a"):
            hosts.cool_down("a", 1e5, 503)
        watch = Stopwatch()
        async with hosts.rate_slot("a"):
            assert watch.seconds == pytest.approx(300)


async def test_a_waiting_request_that_is_cancelled_gives_its_turn_to_the_next():
    hosts, turns = HostLimits(1, 5), []

    async def take(name: str) -> None:
        async with hosts.rate_slot("a"):
            turns.append((name, anyio.current_time()))

    with anyio.fail_after(FOR_EVER):
        start = anyio.current_time()
        async with anyio.create_task_group() as taking, anyio.create_task_group() as doomed:
            taking.start_soon(take, "first")
            await anyio.wait_all_tasks_blocked()
            doomed.start_soon(take, "cancelled")
            await anyio.wait_all_tasks_blocked()
            taking.start_soon(take, "last")
            await anyio.wait_all_tasks_blocked()
            doomed.cancel_scope.cancel()
    assert turns == [("first", start), ("last", start + 5)]


async def test_hosts_are_forgotten_when_nobody_uses_them():
    hosts = HostLimits(6, 0)
    for number in range(1000):
        async with hosts.rate_slot(f"{number}.example"):
            assert len(hosts) == 1
    slow = HostLimits(6, 10)
    for number in range(120):
        async with slow.rate_slot(f"{number}.example"):
            pass
        await anyio.sleep(1)
    assert len(slow) <= 45  # those of the last pause, and of the time between two sweeps
