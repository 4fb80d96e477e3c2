"""The ways in which a hub can be gone."""

from __future__ import annotations

from toolhub.errors import HubClosed


class HubUnreachable(HubClosed):
    """No hub answers at the address. Nothing was sent, so another hub may be asked."""


class HubLost(HubClosed):
    """The hub went away, or fell silent, while it had a request. What it did with it is unknown."""


class HubTimeout(HubLost):
    """The hub is there but has not answered well past the time it was given."""
