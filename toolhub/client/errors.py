"""Errors of a hub that cannot be reached or does not answer."""

from __future__ import annotations

from toolhub.errors import HubClosed


class HubUnreachable(HubClosed):
    """No hub answers at the address. Nothing was sent, so the request may be sent to another hub."""


class HubLost(HubClosed):
    """The connection ended, or the hub stopped answering, during a request. It may have carried out the request."""


class HubTimeout(HubLost):
    """The hub is connected but did not answer, long after the request's timeout."""
