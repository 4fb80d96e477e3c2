"""What a client may send, how long it may take, and how many clients there may be. The clients are plain sockets."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from served_hub import Json, ServedHub, eventually, open_task, served, stub, text_of, write_config

from toolhub.config.models import HttpLimits
from toolhub.serve.protocol import MAX_HEADERS, ConnectionLimiter, address_of

# Far longer than anything here takes, so that a busy machine fails no test.
WAIT_TIMEOUT_S = 30.0
TOKEN = "a-token-for-this-test"
MIB = 1 << 20


@contextmanager
def limited(folder: Path, *options: str, token: str | None = None, **limits: float) -> Iterator[ServedHub]:
    """A hub with these keys of `hub.http`, one server, and both kinds of listener."""
    config = write_config(folder, hub={"http": limits}, servers={"echo": stub()})
    with served(config, "--uds", str(folder / "hub.sock"), *options, token=token) as hub:
        yield hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub with the default limits."""
    with limited(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub that waits for a head and for a body for a moment only, and takes small bodies only."""
    folder = tmp_path_factory.mktemp("hasty")
    with limited(folder, head_timeout_s=0.5, body_timeout_s=0.5, body_bytes=MIB) as running:
        yield running


def connect(hub: ServedHub, *, source: str = "127.0.0.1", unix: bool = False) -> socket.socket:
    """A connection; it raises rather than wait for ever."""
    connection = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    connection.settimeout(WAIT_TIMEOUT_S)
    if unix:
        connection.connect(hub.uds)
    else:
        connection.bind((source, 0))
        host, port = hub.http.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection, whichever way the hub ended it."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except (ConnectionResetError, BrokenPipeError):
        pass
    return got


def send_until_refused(connection: socket.socket, piece: bytes, *, times: int) -> int:
    """Send `piece` again and again until the hub answers or ends the connection; return how many bytes it took."""
    sent = 0
    with selectors.DefaultSelector() as ready:
        ready.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        for _ in range(times):
            events = ready.select(WAIT_TIMEOUT_S)
            assert events, "the hub neither reads nor answers"
            if events[0][1] & selectors.EVENT_READ:
                break
            try:
                sent += connection.send(piece)
            except (ConnectionResetError, BrokenPipeError):
                break
    return sent


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def ask(connection: socket.socket, *, last: bool = True) -> int:
    """Send a GET and return the status; the connection stays open unless this is the last request on it."""
    end = b"Connection: close\r\n" if last else b""
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + end + b"\r\n")
    if last:
        return status_of(read_to_end(connection))
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    return status_of(answer)


def rss_of(hub: ServedHub) -> int:
    """Resident bytes of the hub's process."""
    return int(Path(f"/proc/{hub.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


# --- the head ---


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_one_endless_header_line_is_refused_with_431(hub: ServedHub, unix: bool) -> None:
    with connect(hub, unix=unix) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Endless: ")
        sent = send_until_refused(connection, b"a" * 16384, times=4096)
        assert sent < 16 * MIB  # what the sockets' buffers hold, and not 64 MiB
        assert status_of(read_to_end(connection)) == 431


def test_an_endless_request_line_is_refused_with_431(hub: ServedHub) -> None:
    with connect(hub) as connection:
        connection.sendall(b"GET /")
        send_until_refused(connection, b"a" * 16384, times=4096)
        assert status_of(read_to_end(connection)) == 431


@pytest.mark.parametrize("count", [MAX_HEADERS + 2, 100_000])
def test_a_flood_of_headers_is_refused_with_431(hub: ServedHub, count: int) -> None:
    with connect(hub) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        send_until_refused(connection, b"a:b\r\n" * 1000, times=count // 1000)
        if count < 1000:
            connection.sendall(b"a:b\r\n" * count + b"\r\n")
        assert status_of(read_to_end(connection)) == 431


def test_the_largest_head_that_is_allowed_is_answered(hub: ServedHub) -> None:
    start, end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Large: ", b"\r\n\r\n"
    for more, status in ((0, 200), (1, 431)):
        filler = b"a" * (HttpLimits().head_bytes - len(start) - len(end) + more)
        with connect(hub) as connection:
            connection.sendall(start + filler + end)
            assert status_of(read_to_end(connection)) == status


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_connection_that_sends_nothing_is_closed_without_an_answer(hasty: ServedHub, unix: bool) -> None:
    with connect(hasty, unix=unix) as connection:
        assert read_to_end(connection) == b""


def test_a_head_that_drips_is_refused_with_408(hasty: ServedHub) -> None:
    """A byte now and then must not win time."""
    with connect(hasty) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert drip(connection, b"a") == 408


def drip(connection: socket.socket, piece: bytes) -> int:
    """Send a piece whenever nothing has come for a tenth of a second; return the status of the answer."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    with selectors.DefaultSelector() as ready:
        ready.register(connection, selectors.EVENT_READ)
        while not ready.select(0.1):
            assert time.monotonic() < deadline, "the hub is still waiting"
            connection.sendall(piece)
    return status_of(read_to_end(connection))


def test_a_client_that_sends_only_empty_lines_is_refused_with_408(hasty: ServedHub) -> None:
    with connect(hasty) as connection:
        assert drip(connection, b"\r\n") == 408


def test_the_next_head_on_a_connection_that_is_kept_open_has_the_same_time(hasty: ServedHub) -> None:
    with connect(hasty) as connection:
        assert ask(connection, last=False) == 200
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert status_of(read_to_end(connection)) == 408


# --- the body ---

POST = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("head", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1000\r\n"])
def test_a_body_that_drips_is_refused_with_408(hasty: ServedHub, head: bytes) -> None:
    with connect(hasty) as connection:
        connection.sendall(POST + head)
        assert drip(connection, b" ") == 408
    assert "Traceback" not in hasty.said


def test_a_body_that_says_that_it_is_too_large_is_refused_unread(hasty: ServedHub) -> None:
    with connect(hasty) as connection:
        connection.sendall(POST + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (MIB + 1))
        assert status_of(read_to_end(connection)) == 413


def test_a_body_that_turns_out_to_be_too_large_is_refused_with_413(hasty: ServedHub) -> None:
    with connect(hasty) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            send_whole_unless_refused(connection, chunk)
        assert status_of(read_to_end(connection)) == 413
    assert "Traceback" not in hasty.said


def send_whole_unless_refused(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except (ConnectionResetError, BrokenPipeError):
        pass


@pytest.mark.parametrize("framing", [b"1;x=", b"0\r\nX-Trailer: "], ids=["extension", "trailer"])
def test_endless_framing_of_a_chunked_body_is_refused_with_431(hub: ServedHub, framing: bytes) -> None:
    with connect(hub) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + framing)
        sent = send_until_refused(connection, b"a" * 16384, times=4096)
        assert sent < 16 * MIB
        assert status_of(read_to_end(connection)) == 431


def test_a_body_that_nobody_reads_any_more_has_the_same_limits(tmp_path: Path) -> None:
    """The answer to a request without the token comes at once; its body could go on for ever."""
    with limited(tmp_path, "--token", TOKEN, token=TOKEN, body_timeout_s=0.5) as hub, connect(hub) as connection:
        connection.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        assert status_of(read_to_end(connection)) == 401


# --- smuggling: what a proxy in front might read as another request than the hub ---


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        b"Content-Length: +2\r\n\r\n{}",
        b"Content-Length: -2\r\n\r\n{}",
        b"Content-Length: 2, 3\r\n\r\n{} ",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        b"X-Null: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=repr,
)
def test_a_request_whose_end_is_ambiguous_is_refused_with_400(hub: ServedHub, framing: bytes) -> None:
    with connect(hub) as connection:
        connection.sendall(POST + framing + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_to_end(connection)
    assert status_of(answer) == 400 and b"HTTP/1.1 200" not in answer
    with hub.client() as client:
        assert client.get("/v1/tasks").json() == {"tasks": []}


def test_nothing_behind_a_request_to_upgrade_is_read_as_a_request(hub: ServedHub) -> None:
    with connect(hub) as connection:
        upgrade = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        connection.sendall(upgrade + b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_to_end(connection)
    assert status_of(answer) == 200 and answer.count(b"HTTP/1.1") == 1


# --- how many ---


def test_connections_of_one_address_are_limited_and_others_are_still_served(tmp_path: Path) -> None:
    with limited(tmp_path, connections=40, connections_per_address=20) as hub, ExitStack() as held:
        for _ in range(20):
            ask(held.enter_context(connect(hub, source="127.0.0.2")), last=False)
        with connect(hub, source="127.0.0.2") as refused:
            assert status_of(read_to_end(refused)) == 503
        with connect(hub, source="127.0.0.3") as other:
            assert ask(other) == 200
        held.close()
        eventually(lambda: is_served(hub, "127.0.0.2"), within=WAIT_TIMEOUT_S)


def is_served(hub: ServedHub, source: str) -> bool:
    with connect(hub, source=source) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return status_of(read_to_end(connection)) == 200


def test_connections_are_limited_overall_and_the_unix_socket_is_still_served(tmp_path: Path) -> None:
    with limited(tmp_path, connections=40, connections_per_address=20) as hub, ExitStack() as held:
        for source in ("127.0.0.2", "127.0.0.3"):
            for _ in range(20):
                ask(held.enter_context(connect(hub, source=source)), last=False)
        with connect(hub, source="127.0.0.4") as refused:
            assert status_of(read_to_end(refused)) == 503
        with connect(hub, unix=True) as owner:
            assert ask(owner) == 200
        assert hub.said.count("are refused: the limit is") == 1


def test_two_thousand_idle_connections_leave_the_hub_responsive(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 4096, "this test holds 2,000 connections"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        with limited(tmp_path, head_timeout_s=600) as hub, ExitStack() as held:
            before = rss_of(hub)
            for _ in range(2000):
                held.enter_context(connect(hub, source="127.0.0.2"))
            with connect(hub, source="127.0.0.2") as refused:
                assert status_of(read_to_end(refused)) == 503
            with hub.client() as client, open_task(client) as task:
                assert text_of(task.call("echo", text="still here")) == "still here"
            assert rss_of(hub) - before < 64 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_flood_of_heads_on_many_connections_costs_little_memory(tmp_path: Path) -> None:
    """Without a token, and on a hub that needs one: what strangers can do."""
    with limited(tmp_path, "--token", TOKEN, token=TOKEN, connections=100) as hub, ExitStack() as held:
        before = rss_of(hub)
        offered = 0
        for _ in range(100):
            connection = held.enter_context(connect(hub))
            connection.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
            offered += send_until_refused(connection, b"a" * 65536, times=64)
        for _ in range(100):
            connection = held.enter_context(connect(hub))
            send_whole_unless_refused(connection, b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 10_000)
        assert rss_of(hub) - before < 48 * MIB
        held.close()
        eventually(lambda: is_served(hub, "127.0.0.1"), within=WAIT_TIMEOUT_S)


def test_a_flood_of_pipelined_requests_ends_the_connection(hub: ServedHub) -> None:
    with hub.client() as client, open_task(client) as task, connect(hub) as connection:
        body = b'{"server": "echo", "tool": "sleep", "arguments": {"seconds": 60}}'
        head = f"POST {task.path}/calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        call = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        send_whole_unless_refused(connection, call + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert read_to_end(connection) == b""


# --- what must not be cut off ---


def test_a_long_call_outlives_every_deadline(hasty: ServedHub) -> None:
    with hasty.client() as client, open_task(client) as task:
        assert task.call("sleep", seconds=2).status_code == 200


def test_a_long_stream_outlives_every_deadline(hasty: ServedHub) -> None:
    with hasty.client() as client, open_task(client) as task:
        body: Json = {"server": "echo", "tool": "sleep", "arguments": {"seconds": 2}}
        headers = {"Accept": "application/x-ndjson"}
        with client.stream("POST", f"{task.path}/calls", json=body, headers=headers) as answer:
            assert '"result"' in list(answer.iter_lines())[-1]


def test_an_idle_connection_is_kept_open_longer_than_a_head_may_take(hasty: ServedHub) -> None:
    with connect(hasty) as idle, connect(hasty) as silent:
        assert ask(idle, last=False) == 200
        assert read_to_end(silent) == b""  # the time for a head is over
        assert ask(idle) == 200


def test_a_body_in_many_small_chunks_is_taken(hub: ServedHub) -> None:
    pieces = (b" " for _ in range(20_000))
    answer = httpx2.post(f"{hub.http}/v1/tasks", content=pieces, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and "JSON" in answer.text


# --- the rules alone ---


@pytest.mark.quick
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a-name", "a-name"),
    ],
)
def test_a_client_is_counted_by_address_or_by_its_ipv6_network(host: str, address: str) -> None:
    assert address_of(host) == address


@pytest.mark.quick
def test_a_connection_that_ends_makes_room() -> None:
    limiter = ConnectionLimiter(HttpLimits(connections=3, connections_per_address=2))
    assert [limiter.admit(address, 0) for address in ("a", "a", "a", "b", "c", None)] == [1, 1, 0, 1, 0, 0]
    limiter.release("a")
    assert [limiter.admit(address, 0) for address in ("c", "a")] == [1, 0]
    for address in ("a", "b", "c"):
        limiter.release(address)
    assert repr(limiter) == "<ConnectionLimiter 0 of 3>" and not limiter._by_address
