"""A rollout: a task of a trainer, with a token for its agent and a report of its calls."""

from __future__ import annotations

from toolhub.client.task import CLOSE_S, RemoteTask
from toolhub.client.transport import Transport
from toolhub.errors import HubLost, HubUnreachable, TaskClosed, ToolhubError
from toolhub.model import Json

ROLLOUTS = "/v1/rollouts"


class RemoteRollout(RemoteTask):
    """A rollout, made by `RemoteHub.rollout()`. It renews its own lease, and can be used as a task."""

    def __init__(self, transport: Transport, opened: Json, *, timeout: float | None) -> None:
        super().__init__(transport, opened, timeout=timeout, held_path=f"{ROLLOUTS}/{opened['id']}")
        self.headers: dict[str, str] = opened["mcp"]["headers"]
        """What an MCP client of this rollout must send."""
        self._url_path: str = opened["mcp"]["url_path"]
        self._token: str = opened["token"]
        self._final: Json | None = None

    @property
    def url(self) -> str:
        """The address for MCP clients that can send `headers`. It has no token."""
        return f"http://{self._transport.address.authority}{self._url_path}"

    @property
    def url_with_token(self) -> str:
        """The address for MCP clients that cannot send headers: the token is its password. Keep it out of logs."""
        return f"http://rollout:{self._token}@{self._transport.address.authority}{self._url_path}"

    async def report(self) -> Json:
        """Return the counts by outcome, and server, tool, outcome and times of each call. After the end: of all calls.

        `state` is `open`, `closed`, or `expired` if the lease ran out before the rollout was closed. Raises TaskClosed
        if the hub knows it no more.
        """
        if self._final is not None:
            return self._final
        report: Json = await self._transport.request("GET", self._held_path, repeatable=True)
        return report

    async def raise_for_infrastructure(self) -> None:
        """Raise ToolhubError if the rollout must not be scored.

        That is if a call failed because of the infrastructure, or the lease ran out. Other errors are the tools' or the
        model's own.
        """
        report = await self.report()
        if report["state"] == "expired":
            raise TaskClosed(f"the lease of {self.id} ran out before it was closed; do not score it, run it again")
        failed = [call for call in report["calls"] if call["outcome"] == "infrastructure_error"]
        if count := report["counts"]["infrastructure_error"]:
            last = f"; the last was {failed[-1]['error']} of server {failed[-1]['server']!r}" if failed else ""
            raise ToolhubError(
                f"{count} of the calls of {self.id} failed because of the infrastructure{last}; do not score it, "
                "run it again"
            )

    async def aclose(self) -> None:
        """End the rollout and its processes, and keep its report. Idempotent."""
        self._let_go()
        if self._final is None:
            try:
                self._final = await self._transport.request("DELETE", self._held_path, bound=CLOSE_S, repeatable=True)
            except (HubUnreachable, HubLost, TaskClosed):
                pass  # `report()` raises what is wrong
