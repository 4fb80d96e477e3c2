"""Why the browser gave no page. Each text is for the model, and ends with the way out."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class BrowserError(ToolhubError):
    """Root. The task's pages are as they were, unless the class says otherwise."""


class BrowserUnavailable(BrowserError):
    """Chromium does not start here; somebody has to install or configure something."""


class BrowserFull(BrowserError):
    """As many tasks have pages open as may; worth another try later."""


class PagesLost(BrowserError):
    """The task's pages, cookies and storage are gone, through no act of the task. It is told once."""


class Refused(BrowserError):
    """The address is none that may be reached: not http(s), or not public and not allowed."""
