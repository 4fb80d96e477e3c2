"""The options of the browser server. Times are seconds, sizes bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolhub.config.section import Count, Seconds, Section


class BrowserSettings(Section):
    """What `create_server` and `open_renderer` take."""

    executable: str | None = None
    """The Chromium to run; None: the first of chromium, chromium-browser and google-chrome on PATH."""
    sandbox: bool = True
    """Chromium's own; false: without, for machines where it cannot work. Under root Chromium is another user."""
    max_contexts: Count = 64
    """Tasks that have pages open at a time, in one hub. One with a page takes some 30 to 150 MB."""
    max_tabs: Count = 8
    """Of one task."""
    idle_s: Seconds = 900
    """After this long without a call, the pages of a task are closed; the task is told."""
    action_s: Seconds = 10
    """For a click, a key, a snapshot."""
    navigation_s: Seconds = 30
    """Until the document is there; what it loads later is not waited for as long."""
    wait_s: Seconds = 30
    """The longest that `browser_wait_for` waits."""
    max_chars: Count = 20_000
    """Of a result."""
    max_image_bytes: Count = 1 << 20
    """Of a screenshot, before base64."""
    snapshots: Literal["full", "none"] = "full"
    """Whether results of actions show the page as a snapshot, too."""
    viewport_width: Count = 1280
    viewport_height: Count = 720
    locale: str = "en-US"
    user_agent: str | None = None
    """None: Chromium's own, which says HeadlessChrome."""
    downloads_dir: str | None = None
    """Files go to its folder named after the task and stay; None: to a temporary folder that ends with the task."""
    max_download_bytes: Count = 100 << 20
    """Of one file; what is larger is given up."""
    max_page_bytes: Count = 1 << 30
    """Memory of one page; what takes more is closed. Where there is no /proc it bounds scripts alone."""
    allow_private: list[str] = Field(default_factory=list)
    """Hosts (`127.0.0.1:8000`, `*.intranet.example`) that may lead to addresses that are not public."""

    @property
    def key(self) -> str:
        """Equal for settings that one browser can serve."""
        return f"{self.executable or 'default'} {self.sandbox} {self.max_contexts} {self.max_page_bytes}"
