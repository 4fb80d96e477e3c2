"""Who may come in: token, loopback names, the unix socket's file mode."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from served_hub import TOOLHUB, ServedHub, environment, error_of, open_task, served, stub, text_of, write_config

from toolhub.config import SandboxSettings, parse_config
from toolhub.errors import ConfigError
from toolhub.serve.run import BindSettings

TOKEN = "a-token-for-this-test"
PAGE = "http://localhost:6274"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub with a token on a TCP port and on a socket, whose folder is not there yet."""
    folder = tmp_path_factory.mktemp("guarded")
    config = write_config(folder, servers={"echo": stub()})
    socket = str(folder / "new" / "hub.sock")
    with served(config, "--uds", socket, "--token", TOKEN, token=TOKEN) as hub:
        yield hub


@pytest.mark.quick
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_a_loopback_bind_needs_no_token(host: str) -> None:
    bind = BindSettings(host, 0, None, None, allow_inline=False)
    assert bind.with_token(SandboxSettings()) == bind


ONLINE = SandboxSettings.model_validate({"profiles": {"online": {"network": "host"}}})


@pytest.mark.quick
@pytest.mark.parametrize("sandbox", [ONLINE, SandboxSettings(backend="subprocess")], ids=["profile", "backend"])
def test_a_loopback_bind_that_sandboxed_code_reaches_gets_a_token(sandbox: SandboxSettings) -> None:
    assert BindSettings("127.0.0.1", 0, None, None, allow_inline=False).with_token(sandbox).token
    given = BindSettings("127.0.0.1", 0, None, "given", allow_inline=False)
    assert given.with_token(sandbox) == given


@pytest.mark.quick
def test_a_hub_without_tcp_needs_no_token_whatever_sandboxes_reach() -> None:
    private = BindSettings(None, 0, Path("hub.sock"), None, allow_inline=True, is_private=True)
    assert private.with_token(ONLINE) == private


@pytest.mark.quick
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost.example.org", "127.0.0.1.example.org"])
def test_a_bind_that_others_reach_gets_a_token_of_its_own(host: str) -> None:
    one, other = (
        BindSettings(host, 0, None, None, allow_inline=False).with_token(SandboxSettings()).token for _ in range(2)
    )
    assert one and other and one != other and len(one) >= 32


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_open_without_the_token(guarded: ServedHub, path: str) -> None:
    assert httpx2.get(guarded.http + path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/statistics", "/mcp", "/metrics", "/openapi.json", "/nowhere"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
    ],
    ids=["none", "wrong", "beginning", "longer", "capitals", "basic", "latin1"],
)
def test_everything_else_needs_the_token(guarded: ServedHub, path: str, headers: dict[str, str]) -> None:
    raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    answer = httpx2.get(guarded.http + path, headers=raw)
    assert error_of(answer, 401)["type"] == "Unauthorized"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_right_token_passes_whatever_the_host_is_called(guarded: ServedHub) -> None:
    with guarded.client() as client:
        for headers in ({}, {"Host": "hub.example.org"}, {"Origin": "https://example.org"}):
            assert client.get("/v1/tasks", headers=headers).json() == {"tasks": []}


def test_a_given_token_is_never_printed_and_clients_are_told_where_to_put_it(guarded: ServedHub) -> None:
    assert TOKEN not in guarded.said
    assert '"Authorization": "Bearer ${TOOLHUB_TOKEN}"' in guarded.said


def test_the_unix_socket_has_mode_0600_and_needs_no_token(guarded: ServedHub) -> None:
    assert stat.S_IMODE(Path(guarded.uds).stat().st_mode) == 0o600
    with guarded.client(unix=True) as client:
        assert client.get("/v1/tasks").json() == {"tasks": []}


def test_a_folder_made_for_the_socket_can_be_entered_by_its_owner_only(guarded: ServedHub) -> None:
    assert stat.S_IMODE(Path(guarded.uds).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example:80@127.0.0.1"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://localhost.evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "anything else"},
    ],
    ids=str,
)
def test_without_a_token_foreign_names_and_web_pages_are_refused(hub: ServedHub, headers: dict[str, str]) -> None:
    for path in ("/v1/tasks", "/mcp", "/metrics", "/llm/v1/models", "/openapi.json"):
        for method in ("GET", "POST", "OPTIONS"):
            answer = httpx2.request(method, hub.http + path, headers=headers)
            assert error_of(answer, 403)["type"] == "Unauthorized"


def test_without_a_token_loopback_names_pass(client: httpx2.Client) -> None:
    for headers in ({"Host": "localhost:1"}, {"Host": "[::1]:1"}, {"Sec-Fetch-Site": "none"}):
        assert client.get("/v1/statistics", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def open_to_a_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub without a token that pages of one origin may use."""
    folder = tmp_path_factory.mktemp("origins")
    config = write_config(folder, hub={"allowed_origins": [PAGE]}, servers={"echo": stub()})
    with served(config) as hub:
        yield hub


def test_a_page_whose_origin_is_allowed_may_use_the_hub(open_to_a_page: ServedHub) -> None:
    sent_by_a_browser = {"Origin": PAGE, "Sec-Fetch-Site": "same-site"}
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with httpx2.Client(base_url=open_to_a_page.http, headers=sent_by_a_browser) as client:
        asked = client.options("/v1/tasks", headers=preflight)
        assert asked.status_code == 200 and "content-type" in asked.headers["Access-Control-Allow-Headers"]
        with open_task(client) as task:
            answer = client.get(task.path)
            assert answer.headers["Access-Control-Allow-Origin"] == PAGE


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:6275",
        "https://localhost:6274",
        "http://localhost",
        "http://localhost:62740",
        "http://[",
        "null",
    ],
)
def test_an_origin_that_is_not_exactly_the_allowed_one_is_refused(open_to_a_page: ServedHub, origin: str) -> None:
    answer = httpx2.post(f"{open_to_a_page.http}/v1/tasks", json={}, headers={"Origin": origin})
    assert error_of(answer, 403)["type"] == "Unauthorized"


@pytest.mark.quick
@pytest.mark.parametrize("origin", ["*", "localhost", "http://", "http://a/", "http://a/b", "HTTP://a", "http://*.a"])
def test_what_is_no_origin_cannot_be_allowed(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"hub\.allowed_origins\[0\]: expected an origin"):
        parse_config({"hub": {"allowed_origins": [origin]}})


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain;application/json"],
)
def test_a_body_that_is_not_said_to_be_json_is_refused_on_every_path(
    guarded: ServedHub, hub: ServedHub, content_type: str | None
) -> None:
    """A page may send such a body to any host, and the browser asks nobody first."""
    headers = {"Content-Type": content_type} if content_type else {}
    with hub.client() as tokenless, guarded.client() as tcp, guarded.client(unix=True) as unix:
        for client in (tokenless, tcp, unix):
            for path in ("/v1/tasks", "/mcp", "/llm/v1/chat/completions"):
                for content in (b"{}", iter([b"{}"])):
                    answer = client.post(path, content=content, headers=headers)
                    assert "application/json" in error_of(answer, 415)["message"]
            assert client.get("/v1/tasks").json() == {"tasks": []}


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_a_body_that_is_said_to_be_json_is_taken(client: httpx2.Client, content_type: str) -> None:
    answer = client.post("/v1/tasks", content=b"{}", headers={"Content-Type": content_type})
    assert answer.status_code == 201
    client.delete(f"/v1/tasks/{answer.json()['id']}")


def test_an_open_bind_makes_a_token_prints_it_once_and_it_works(tmp_path: Path) -> None:
    """On such a hub clients may bring servers as well, if that is said."""
    with served(write_config(tmp_path), "--host", "0.0.0.0", "--allow-inline-servers") as hub:
        (hub.token,) = re.findall(r"token +(\S{32,})", hub.said)
        hub.http = hub.http.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{hub.http}/v1/tasks").status_code == 401
        with hub.client() as client, open_task(client, servers={"mine": stub()}) as task:
            assert text_of(task.call("echo", "mine", text="hello")) == "hello"
        assert hub.said.count(hub.token) == 1


def test_sandboxed_code_gets_a_token_made_and_its_user_finds_it_in_a_file(tmp_path: Path) -> None:
    """A profile with the host's network reaches the hub's loopback address."""
    config = write_config(tmp_path, sandbox={"profiles": {"online": {"network": "host"}}}, servers={"echo": stub()})
    with served(config, "--uds", str(tmp_path / "hub.sock")) as hub:
        (hub.token,) = re.findall(r"token +(\S{32,})", hub.said)
        (path,) = map(Path, re.findall(r"--token-file (\S+);", hub.said))
        assert path.read_text() == hub.token and stat.S_IMODE(path.stat().st_mode) == 0o600
        assert httpx2.get(f"{hub.http}/v1/tasks").status_code == 401
        with hub.client() as tcp, hub.client(unix=True) as unix:
            assert tcp.get("/v1/tasks").json() == unix.get("/v1/tasks").json() == {"tasks": []}
        done = subprocess.run(
            [*TOOLHUB, "tools", "--json", "--hub", hub.http, "--token-file", str(path)],
            env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert list(json.loads(done.stdout)) == ["echo"] and done.stderr == ""
    assert not path.exists()


def test_servers_of_clients_are_refused_on_tcp(client: httpx2.Client) -> None:
    answer = client.post("/v1/tasks", json={"servers": {"mine": stub()}})
    error = error_of(answer, 403)
    assert error["type"] == "Unauthorized" and "--allow-inline-servers" in error["message"]


def test_servers_of_clients_are_taken_on_the_unix_socket(hub: ServedHub) -> None:
    with hub.client(unix=True) as client, open_task(client, servers={"mine": stub()}, only_these=True) as task:
        assert [entry["name"] for entry in client.get(f"{task.path}/tools").json()["servers"]] == ["mine"]
        assert text_of(task.call("echo", "mine", text="hello")) == "hello"


def test_a_client_s_server_that_makes_no_sense_is_a_clear_error(hub: ServedHub) -> None:
    with hub.client(unix=True) as client:
        answer = client.post("/v1/tasks", json={"servers": {"mine": {"comand": "x"}}})
    error = error_of(answer, 422)
    assert error["type"] == "ConfigError" and "did you mean 'command'?" in error["message"]
