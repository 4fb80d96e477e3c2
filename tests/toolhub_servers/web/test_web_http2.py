"""HTTP/2: many requests over one connection, and what an answer that nobody reads to its end does to the others."""

from __future__ import annotations

from contextlib import suppress

import anyio
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from web_stage import PATIENCE_S, PUBLIC, Names, Wires, listening, make_certificate, open_wired_client

pytestmark = pytest.mark.anyio

NAME = "fast.example"
URL = f"https://{NAME}/"
BIG_BYTES = 64 << 20


class Http2Origin:
    """Answers `/big` with 64 MiB, `/hangs` never, and the rest with its path."""

    def __init__(self) -> None:
        self.connections = 0
        self.asked: list[str] = []

    async def serve(self, stream) -> None:
        self.connections += 1
        state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        state.initiate_connection()
        left: dict[int, int] = {}
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, h2.exceptions.ProtocolError):
                await stream.send(state.data_to_send())
                while True:
                    for event in state.receive_data(await stream.receive()):
                        if isinstance(event, h2.events.RequestReceived):
                            self._answer(state, event, left)
                    for number in list(left):
                        self._send_what_fits(state, number, left)
                    await stream.send(state.data_to_send())

    def _answer(self, state, event, left) -> None:
        path = dict(event.headers)[b":path"].decode()
        self.asked.append(path)
        if path == "/hangs":
            return
        state.send_headers(event.stream_id, [(":status", "200")])
        if path == "/big":
            left[event.stream_id] = BIG_BYTES
        else:
            state.send_data(event.stream_id, path.encode(), end_stream=True)

    def _send_what_fits(self, state, number, left) -> None:
        while left[number] and (room := state.local_flow_control_window(number)):
            size = min(room, state.max_outbound_frame_size, left[number])
            left[number] -= size
            state.send_data(number, bytes(size), end_stream=not left[number])
        if not left[number]:
            del left[number]


@pytest.fixture
def certificate(tmp_path):
    return make_certificate(tmp_path, NAME, "h2", "http/1.1")


async def test_60_requests_at_once_share_the_open_connection(certificate):
    origin, got = Http2Origin(), set()
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=certificate.client, per_host=60) as web:

                async def ask(path: str) -> None:
                    got.add((await web.get(URL + path)).body.decode())

                await ask("0")
                async with anyio.create_task_group() as asking:
                    for number in range(60):
                        asking.start_soon(ask, str(number))
                assert got == {f"/{number}" for number in range(60)}
                assert origin.connections == web.statistics().connections_opened == 1


async def test_a_crowd_at_a_new_host_opens_no_more_than_it_gets_requests_at_once(certificate):
    origin = Http2Origin()
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=certificate.client, per_host=3) as web:
                async with anyio.create_task_group() as asking:
                    for number in range(60):
                        asking.start_soon(web.get, f"{URL}{number}")
                assert origin.connections <= 3


async def test_http2_is_not_spoken_where_it_is_not_wanted(certificate):
    origin = Http2Origin()
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(
                Wires(port), Names([PUBLIC]), context=certificate.client, http2=False, retries=0
            ) as web:
                with pytest.raises(Exception, match="broke|decode"):
                    await web.get(URL)


async def test_answers_that_are_cut_do_not_starve_those_that_follow(certificate):
    """Their unread rest would fill the window of the connection, which is shared."""
    origin = Http2Origin()
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=certificate.client) as web:
                for _ in range(3):
                    assert (await web.get(URL + "big", max_bytes=1000)).is_cut
                    assert (await web.get(URL + "small")).body == b"/small"


async def test_a_request_that_was_given_up_leaves_its_connection_to_those_that_are_on_it(certificate):
    origin = Http2Origin()
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=certificate.client) as web:
                await web.get(URL + "first")
                async with anyio.create_task_group() as given_up:
                    given_up.start_soon(web.get, URL + "hangs")
                    await wait_asked(origin, "/hangs")
                    await web.get(URL + "beside")
                    assert origin.connections == 1
                    given_up.cancel_scope.cancel()
                await web.get(URL + "after")
                assert origin.connections == 2
                assert web.statistics().connections_open == 1


async def test_requests_beside_an_answer_that_is_cut_are_sent_again_and_that_is_no_retry(certificate):
    origin, got = Http2Origin(), []
    with anyio.fail_after(PATIENCE_S):
        async with listening(origin.serve, tls=certificate.server) as port:
            async with open_wired_client(
                Wires(port), Names([PUBLIC]), context=certificate.client, per_host=20, retries=0
            ) as web:
                await web.get(URL + "first")

                async def ask(path: str, max_bytes: int) -> None:
                    got.append(len((await web.get(URL + path, max_bytes=max_bytes)).body))

                async with anyio.create_task_group() as asking:
                    for _ in range(3):
                        asking.start_soon(ask, "big", 3 << 20)
                        asking.start_soon(ask, "big", 1 << 20)
                assert sorted(got) == [1 << 20] * 3 + [3 << 20] * 3


async def wait_asked(origin: Http2Origin, path: str) -> None:
    while path not in origin.asked:
        await anyio.wait_all_tasks_blocked()
