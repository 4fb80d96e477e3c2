"""The options of the browser server. Times are seconds, sizes are bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolhub.config.section import Count, Seconds, Section


class BrowserSettings(Section):
    """The options of `create_server` and `open_renderer`."""

    executable: str | None = None
    """The Chromium to run; None: the first of chromium, chromium-browser and google-chrome on PATH."""
    sandbox: bool = True
    """Chromium's own sandbox; false: off, for machines where it cannot work. Under root Chromium is another user."""
    max_contexts: Count = 64
    """Tasks with open pages at a time, in one hub. A context with a page takes about 30 to 150 MB."""
    max_tabs: Count = 8
    """Of one task."""
    idle_s: Seconds = 900
    """The pages of a task are closed after this time without a call, and the task is told."""
    action_s: Seconds = 10
    """For a click, a key, a snapshot."""
    navigation_s: Seconds = 30
    """Until the document is loaded. Waiting for what it loads later is shorter."""
    wait_s: Seconds = 30
    """The longest wait of `browser_wait_for`."""
    max_chars: Count = 20_000
    """Of a result."""
    max_image_bytes: Count = 1 << 20
    """Of a screenshot, before base64."""
    snapshots: Literal["full", "none"] = "full"
    """Whether results of actions include a snapshot of the page."""
    viewport_width: Count = 1280
    viewport_height: Count = 720
    locale: str = "en-US"
    user_agent: str | None = None
    """None: Chromium's own, which says HeadlessChrome."""
    downloads_dir: str | None = None
    """Files go to a folder in it named after the task and stay; None: to a temporary folder that ends with the task."""
    max_download_bytes: Count = 100 << 20
    """Of one file; a larger one is given up."""
    max_page_bytes: Count = 1 << 30
    """Memory of one page; a page that takes more is closed. Without /proc this bounds only scripts."""
    allow_private: list[str] = Field(default_factory=list)
    """Hosts (`127.0.0.1:8000`, `*.intranet.example`) that may have addresses that are not public."""

    @property
    def key(self) -> str:
        """Equal for settings that can share one browser."""
        return f"{self.executable or 'default'} {self.sandbox} {self.max_contexts} {self.max_page_bytes}"
