"""Why the browser has no page. Each text is for the model, and ends with what to do."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class BrowserError(ToolhubError):
    """Root. The task's pages are unchanged, unless the class says otherwise."""


class BrowserUnavailable(BrowserError):
    """Chromium cannot start here. Something has to be installed or configured."""


class BrowserFull(BrowserError):
    """Too many tasks have pages open. Trying again later may help."""


class PagesLost(BrowserError):
    """The task's pages, cookies and storage are lost, and not by an action of the task. Raised once."""


class Refused(BrowserError):
    """The address must not be reached: it is not http(s), or not public and not allowed."""
