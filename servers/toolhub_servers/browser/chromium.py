"""Start Chromium, and notice its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio import to_thread
from playwright.async_api import Browser, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from toolhub.scratch import Scratch, sweep
from toolhub_servers.browser.errors import BrowserUnavailable
from toolhub_servers.browser.launcher import Launcher, find_parent
from toolhub_servers.browser.memory import MemoryWatch, memory_arguments
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.confined import BROWSER_UID, uid_exists

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A cold start takes about 3 s, and many times that on a busy machine.
START_S = 60.0
# Closing takes about 100 ms. What has not ended by then ends when its pipe is closed.
CLOSE_S = 10.0
# Chromium answers within milliseconds. Giving it up loses the pages of all tasks, so a busy machine gets time.
PROBE_S = 30.0
# Nothing listens there: pages outside all contexts have no network.
NO_PROXY = "http://127.0.0.1:1"
ARGUMENTS = (
    "--disable-dev-shm-usage",  # containers have 64 MB of it, and Chromium crashes when it is full
    # Nothing may bypass the proxy: Chromium resolves no name and sends no packet outside a connection to it.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
# What Chromium needs of the environment. The rest of the hub's may contain secrets.
_ENVIRONMENT = ("HOME", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "FONTCONFIG_FILE")
_ENVIRONMENT_PREFIXES = ("LC_", "XDG_", "FONTCONFIG_")


_WITHOUT_NAMESPACES = (
    "; allow user namespaces to the hub, or do without Chromium's sandbox by the browser's option sandbox: false"
)
_AS_ROOT = f"; the hub is root, so Chromium runs as uid {BROWSER_UID}, which has to be able to read and run it"


def find_chromium(executable: str | None) -> str:
    """Return the path of the Chromium to run. Raises ValueError, which says what to do."""
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

    def __init__(self, browser: Browser, memory: MemoryWatch) -> None:
        self.browser = browser
        self.memory = memory
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
        """Return whether Chromium answers; if not, it counts as gone. Only this notices the death of the driver."""
        if not self.is_gone:
            try:
                with anyio.fail_after(PROBE_S):
                    session = await self.browser.new_browser_cdp_session()
                    await session.detach()
            except (PlaywrightError, TimeoutError):
                self._gone.set()
        return not self.is_gone


@asynccontextmanager
async def open_chromium(settings: BrowserSettings) -> AsyncIterator[Chromium]:
    """Run a Chromium with its own profile during the block. Raises BrowserUnavailable.

    If this process is killed, the driver reads the end of its pipe and ends Chromium. If the driver is killed, Chromium
    does the same. The next start removes their files.
    """
    try:
        path = find_chromium(settings.executable)
    except ValueError as exc:
        raise BrowserUnavailable(str(exc)) from exc
    await to_thread.run_sync(sweep)
    async with _open_launcher(path, settings) as launcher, _running(path, launcher, settings) as browser:
        memory = MemoryWatch(browser, settings.max_page_bytes)
        async with anyio.create_task_group() as watching:
            watching.start_soon(memory.run)
            try:
                yield Chromium(browser, memory)
            finally:
                watching.cancel_scope.cancel()


@asynccontextmanager
async def _open_launcher(path: str, settings: BrowserSettings) -> AsyncIterator[Launcher]:
    uid = account(settings)
    try:
        scratch = Scratch("chromium", find_parent(uid))
    except OSError as exc:
        raise BrowserUnavailable(f"there is no folder for the browser: {exc}") from exc
    try:
        try:
            launcher = Launcher(scratch.path, path, uid=uid)
        except OSError as exc:
            raise BrowserUnavailable(f"the folder of the browser could not be filled: {exc}") from exc
        yield launcher
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(scratch.remove)


@asynccontextmanager
async def _running(path: str, launcher: Launcher, settings: BrowserSettings) -> AsyncIterator[Browser]:
    # A cancellation in here would leak processes. The start has its own deadline.
    with anyio.CancelScope(shield=True):
        driver = await _start_driver()
        try:
            browser = await _launch(driver, path, launcher, settings)
        except BaseException:
            await _stop(driver)
            raise
    try:
        yield browser
    finally:
        await _stop(driver, browser)


async def _start_driver() -> Playwright:
    try:
        with anyio.fail_after(START_S):
            starting = async_playwright()
            driver = await starting.start()
            _hear_of_its_end(starting)
            return driver
    except (OSError, TimeoutError, PlaywrightError) as exc:
        raise BrowserUnavailable(f"the driver of the browser did not start: {exc or 'no answer'}") from exc


def _hear_of_its_end(starting: Any) -> None:
    """Fetch the reason why a driver ended. asyncio would otherwise report an exception that was never retrieved."""
    transport = getattr(getattr(starting, "_client", None), "_transport", None)
    if (end := getattr(transport, "on_error_future", None)) is not None:
        end.add_done_callback(lambda end: end.cancelled() or end.exception())


async def _launch(driver: Playwright, path: str, launcher: Launcher, settings: BrowserSettings) -> Browser:
    try:
        return await driver.chromium.launch(
            executable_path=launcher.path,
            artifacts_dir=launcher.artifacts,
            args=[*ARGUMENTS, *memory_arguments(settings.max_page_bytes)],
            ignore_default_args=["--disable-popup-blocking"],  # a page could open thousands
            chromium_sandbox=settings.sandbox is not False,
            proxy={"server": NO_PROXY},
            env=environment(os.environ, launcher),
            timeout=START_S * 1000,
            # The hub handles signals itself.
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )
    except PlaywrightError as exc:
        hint = _WITHOUT_NAMESPACES if "usable sandbox" in exc.message else _AS_ROOT if launcher.uid is not None else ""
        raise BrowserUnavailable(f"{path} did not start: {failure_reason(exc.message)}{hint}") from exc


def account(settings: BrowserSettings) -> int | None:
    """Return the uid that Chromium runs as: an unused one if the hub is root, else None for the hub's own.

    Raises BrowserUnavailable if root cannot change its uid, unless the settings turn off Chromium's sandbox.
    """
    if os.geteuid() != 0:
        return None
    if uid_exists(BROWSER_UID):
        return BROWSER_UID
    if settings.sandbox is False:
        return None
    raise BrowserUnavailable(
        f"the hub is root in a user namespace without uid {BROWSER_UID}, and Chromium has no sandbox for root: run the "
        "hub as an ordinary user, map more uids, or do without the sandbox by the browser's option sandbox: false"
    )


def failure_reason(message: str) -> str:
    """Return why Chromium ended, out of the output that Playwright repeats."""
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


def environment(of_hub: Mapping[str, str], launcher: Launcher) -> dict[str, str | float | bool]:
    """Return the variables of the hub's environment that Chromium gets."""
    kept: dict[str, str | float | bool] = {
        name: value for name, value in of_hub.items() if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)
    }
    kept["PATH"] = os.pathsep.join([launcher.programs, of_hub.get("PATH", os.defpath)])
    kept["TMPDIR"] = launcher.tmpdir
    if launcher.uid is not None:  # it cannot use the hub's folders
        kept = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
        kept["HOME"] = launcher.home
    return kept
