"""Starting Chromium, and noticing its end."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from playwright.async_api import Browser, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from toolhub_servers.browser.errors import BrowserUnavailable

logger = logging.getLogger(__name__)

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A cold start takes some 3 s, and many times that on a machine that is busy with other things.
START_S = 60.0
# Closing takes some 100 ms. Whatever does not end in time ends with the pipe to it.
CLOSE_S = 10.0
# It answers within milliseconds, but giving it up costs every task its pages: a busy machine is no reason to.
PROBE_S = 30.0
# Nothing listens there: what belongs to no context has no network.
NO_PROXY = "http://127.0.0.1:1"
ARGUMENTS = (
    "--disable-dev-shm-usage",  # containers have 64 MB of it, and Chromium crashes when it is full
    # Nothing may pass by the proxy: no name is resolved here, no packet sent outside of a connection.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
# What Chromium needs of the environment; the hub's has secrets that are nobody else's business.
_ENVIRONMENT = ("HOME", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "FONTCONFIG_FILE")
_ENVIRONMENT_PREFIXES = ("LC_", "XDG_", "FONTCONFIG_")
# A link such as mailto: makes Chromium start one of these without asking.
_OPENERS = ("xdg-open", "xdg-email", "gio", "kde-open", "gnome-open")


def find_chromium(executable: str | None) -> str:
    """Return the path of the Chromium to run. Raises ValueError that says what to do."""
    if executable is not None:
        if found := shutil.which(executable):
            return found
        raise ValueError(f"executable {executable!r} is not a program that can be run")
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise ValueError(
        f"no Chromium found: none of {', '.join(NAMES)} is on PATH; install one "
        "(on Debian: apt-get install chromium) or name it by the option executable"
    )


class Chromium:
    """One running Chromium with its driver."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._gone = anyio.Event()
        browser.on("disconnected", lambda _: self._gone.set())

    def __repr__(self) -> str:
        return f"<Chromium {self.browser.version}, {'gone' if self.is_gone else 'running'}>"

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def check(self) -> bool:
        """Return whether it answers; if not, it is gone from now on. The death of the driver is noticed only so."""
        if not self.is_gone:
            try:
                with anyio.fail_after(PROBE_S):
                    session = await self.browser.new_browser_cdp_session()
                    await session.detach()
            except (PlaywrightError, TimeoutError):
                self._gone.set()
        return not self.is_gone


@asynccontextmanager
async def open_chromium(executable: str | None, *, sandbox: bool | None) -> AsyncIterator[Chromium]:
    """Run a Chromium with a profile of its own as long as the block. Raises BrowserUnavailable.

    If this process is killed, the driver reads the end of its pipe and ends Chromium; if the driver is killed, Chromium
    does the same.
    """
    try:
        path = find_chromium(executable)
    except ValueError as exc:
        raise BrowserUnavailable(str(exc)) from exc
    if sandbox is None and os.geteuid() == 0:
        logger.warning("Chromium runs without its own sandbox, because it is run by root; run the hub as a user")
        sandbox = False
    with tempfile.TemporaryDirectory(prefix="toolhub-browser-") as folder:
        env = environment(os.environ, _without_openers(Path(folder)))
        # A cancellation in here would leak processes; the start has its own deadline.
        with anyio.CancelScope(shield=True):
            driver = await _start_driver()
            try:
                browser = await _launch(driver, path, env, sandbox=sandbox is not False)
            except BaseException:
                await _stop(driver)
                raise
        try:
            yield Chromium(browser)
        finally:
            await _stop(driver, browser)


async def _start_driver() -> Playwright:
    try:
        with anyio.fail_after(START_S):
            return await async_playwright().start()
    except (OSError, TimeoutError, PlaywrightError) as exc:
        raise BrowserUnavailable(f"the driver of the browser did not start: {exc or 'no answer'}") from exc


async def _launch(driver: Playwright, path: str, env: dict[str, str | float | bool], *, sandbox: bool) -> Browser:
    try:
        return await driver.chromium.launch(
            executable_path=path,
            args=ARGUMENTS,
            ignore_default_args=["--disable-popup-blocking"],  # a page could open thousands
            chromium_sandbox=sandbox,
            proxy={"server": NO_PROXY},
            env=env,
            timeout=START_S * 1000,
            # The hub decides what a signal means.
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )
    except PlaywrightError as exc:
        hint = "; without user namespaces set the option sandbox to false" if "usable sandbox" in exc.message else ""
        raise BrowserUnavailable(f"{path} did not start: {last_words(exc.message)}{hint}") from exc


def last_words(message: str) -> str:
    """Why Chromium ended, of all that Playwright repeats of what it said."""
    said = [line.partition("[err] ")[2] for line in message.splitlines() if line.startswith("[pid=")]
    reasons = [line for line in said if ":FATAL:" in line or "sandbox" in line]
    return (reasons or message.splitlines() or ["no reason told"])[0][:300]


async def _stop(driver: Playwright, browser: Browser | None = None) -> None:
    with anyio.CancelScope(shield=True):
        if browser is not None:
            with anyio.move_on_after(CLOSE_S):
                try:
                    await browser.close()
                except PlaywrightError:
                    pass  # it has ended already
        with anyio.move_on_after(CLOSE_S):
            await driver.stop()


def environment(of_hub: Mapping[str, str], path: str) -> dict[str, str | float | bool]:
    """What Chromium gets of the hub's environment."""
    kept: dict[str, str | float | bool] = {
        name: value for name, value in of_hub.items() if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)
    }
    kept["PATH"] = os.pathsep.join([path, of_hub.get("PATH", os.defpath)])
    return kept


def _without_openers(folder: Path) -> str:
    """Fill a folder with programs that do nothing, to be found before those that would open a desktop's programs."""
    nothing = shutil.which("true") or "/bin/true"
    for name in _OPENERS:
        (folder / name).symlink_to(nothing)
    return str(folder)
