"""Where pages cannot go: nowhere but to http(s), and to no address that is not public."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import anyio
import pytest
from toolhub_sandbox.proxy.rules import Target
from toolhub_servers.browser.errors import Refused
from toolhub_servers.browser.guard import PublicRules, checked_url

from tests.toolhub_servers.browser.browser_site import Website, answer
from tests.toolhub_servers.browser.browsing import Open

pytestmark = pytest.mark.anyio

PATIENCE = 45
METADATA = "169.254.169.254"
PRIVATE = ["127.0.0.1", "10.0.0.1", "192.168.1.1", METADATA, "0.0.0.0", "::1", "fd00::1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_not_admitted(address: str) -> None:
    rules = PublicRules.allowing([])
    assert not rules.admits(Target(address, 80))
    assert rules.take_refused() == [Target(address, 80)] and rules.take_refused() == []


def test_a_name_is_judged_by_what_it_leads_to() -> None:
    rules = PublicRules.allowing(["*.intranet.example"])
    assert rules.admits(Target("evil.example", 443))
    assert not rules.admits_address(Target("evil.example", 443), ip_address("10.0.0.1"))
    assert rules.admits_address(Target("evil.example", 443), ip_address("93.184.216.34"))
    assert rules.admits_address(Target("wiki.intranet.example", 443), ip_address("10.0.0.1"))


@pytest.mark.parametrize("order", [1, -1])
def test_a_host_with_one_public_address_was_not_refused(order: int) -> None:
    rules, target = PublicRules.allowing([]), Target("mixed.example", 443)
    for address in ["10.0.0.1", "93.184.216.34"][::order]:
        rules.admits_address(target, ip_address(address))
    assert rules.take_refused() == []


def test_an_entry_that_is_no_host_is_named() -> None:
    with pytest.raises(ValueError, match=r"allow_private: '10\.0\.0\.0/8': .*; write 127\.0\.0\.1:8000"):
        PublicRules.allowing(["10.0.0.0/8"])


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        (" example.org ", "https://example.org"),
        ("example.org:8080/path", "https://example.org:8080/path"),
        ("http://example.org/?q=a:b", "http://example.org/?q=a:b"),
        ("about:blank", "about:blank"),
    ],
)
def test_an_address_gets_a_scheme(given: str, opened: str) -> None:
    assert checked_url(given, PublicRules.allowing([])) == opened


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "fi\nle:///etc/passwd",
        "chrome://version",
        "view-source:http://example.org",
        "data:text/html,hi",
        "javascript:alert(1)",
        "blob:http://x",
        f"http://{METADATA}/latest/meta-data",
        "http://user:password@127.0.0.1:8000/",
        "http://[::1]/",
    ],
)
def test_what_is_never_reached_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(Refused, match=r"only http and https addresses are|is not a public address"):
        checked_url(url, PublicRules.allowing([]))


async def test_a_file_of_the_hub_is_not_shown(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            assert "only http and https" in await task.call("navigate", url="file:///etc/passwd")
            await task.open("/local-files")
            shown = await task.click('link "Passwords"')
            assert "root:" not in shown and "- Title: Local files" in shown


async def test_the_website_itself_is_refused_if_it_is_not_allowed(browser: Open, site: Website) -> None:
    asked = len(site.asked)
    with anyio.fail_after(PATIENCE):
        async with browser(allow_private=[]) as task:
            refused = f"[ERROR]: {site.host} was not reached: it is not a public address;"
            assert (await task.open("/")).startswith(refused)
            assert (await task.call("navigate", url=f"http://2130706433:{site.port}/")).startswith(refused)
            named = await task.call("navigate", url=f"http://localhost:{site.port}/")
            assert named.startswith(f"[ERROR]: localhost:{site.port} was not reached: it is not a public address;")
    assert site.asked[asked:] == []


async def test_a_redirect_to_a_private_address_is_refused(browser: Open, site: Website) -> None:
    with anyio.fail_after(PATIENCE), socket.create_server(("127.0.0.1", 0)) as secret:
        port = secret.getsockname()[1]
        async with browser() as task:
            for address in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", f"https://127.0.0.1:{port}/"):
                told = await task.open(f"/redirect?to={address}")
                assert told.startswith("[ERROR]: ") and "is not a public address" in told
        assert was_never_reached(secret)


async def test_nothing_in_a_page_reaches_a_private_address(browser: Open, site: Website) -> None:
    with anyio.fail_after(PATIENCE), socket.create_server(("127.0.0.1", 0)) as secret:
        inside = f"127.0.0.1:{secret.getsockname()[1]}"
        site.pages["/spy"] = answer(
            f"""<title>Spy</title><img src="http://{METADATA}/a.png"><iframe src="http://{inside}/frame"></iframe>
            <link rel="preconnect" href="http://{inside}"><link rel="stylesheet" href="http://{inside}/style.css">
            <script>
            const done = [];
            const ended = name => {{
                done.push(name); if (done.length == 3) document.title = done.sort().join(' '); }};
            fetch('http://{inside}/fetch', {{mode: 'no-cors'}})
                .then(reply => reply.text()).then(text => ended('fetch' + text.length));
            const socket = new WebSocket('ws://{inside}/'); socket.onerror = () => ended('socket');
            navigator.sendBeacon('http://{inside}/beacon', 'x');
            setTimeout(() => ended('time'), 100);
            </script>"""
        )
        async with browser() as task:
            told = await task.open("/spy")
            assert f"- Not loaded: {METADATA}:80, which is not a public address." in told
            assert f"- Not loaded: {inside}, which is not a public address." in told
            title = "fetch0 socket time"
            while f"- Title: {title}" not in (told := await task.call("snapshot")):
                await task.call("wait_for", time=0.05)
        assert was_never_reached(secret)


def was_never_reached(secret: socket.socket) -> bool:
    secret.setblocking(False)
    try:
        secret.accept()[0].close()
    except BlockingIOError:
        return True
    return False


async def test_no_packet_leaves_beside_the_proxy(browser: Open, site: Website) -> None:
    """WebRTC and WebTransport know addresses of their own; a page uses both, and nothing arrives."""
    with anyio.fail_after(PATIENCE), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        inside = f"127.0.0.1:{listener.getsockname()[1]}"
        site.pages["/packets"] = answer(
            f"""<title>Packets</title><script>
            const peer = new RTCPeerConnection({{iceServers: [{{urls: 'stun:{inside}'}}]}});
            peer.createDataChannel('x');
            peer.onicegatheringstatechange = () => {{
                if (peer.iceGatheringState == 'complete') document.title += ' gathered'; }};
            peer.createOffer().then(offer => peer.setLocalDescription(offer));
            const refused = () => document.title += ' refused';
            if (self.WebTransport) new WebTransport('https://{inside}/').ready.catch(refused); else refused();
            </script>"""
        )
        async with browser() as task:
            shown = await task.open("/packets")
            while not ("gathered" in shown and "refused" in shown):
                shown = await task.call("wait_for", time=0.05)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1500)
