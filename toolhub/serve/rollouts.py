"""Rollouts: a trainer's tasks, each with a token that opens it alone and a report of whose fault errors were.

A trainer opens a rollout, gives its agent the address and the token, scores the answer and closes the rollout. The
report then says which calls failed because of the infrastructure, so that the trainer leaves such a rollout out rather
than scoring it. The form of `mcp` in the answer is that of NeMo Gym's `/seed_session`.

A rollout is a task: its lease, limits and fair share are a task's. If the trainer dies, nobody renews the lease, and
the task ends with all its processes.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.errors import ConfigError, TaskClosed, is_fault_of_infrastructure
from toolhub.hub import Hub
from toolhub.model import Call, Json
from toolhub.serve.openapi import OpenRolloutRequest
from toolhub.serve.responses import Endpoint, answering, finite, json_response, read_body
from toolhub.single_flight import SingleFlight
from toolhub.task import HubTask

TOKEN_PREFIX = "rollout."  # noqa: S105 not a secret
"""What every rollout's token begins with. No such token is ever taken for the hub's."""
# A rollout has some tens of calls. Of a longer one the first calls are left out, and counted.
_MOST_CALLS = 500
# So many rollouts that have ended can still be asked for, and their idempotency keys open no other rollout.
_MOST_ENDED = 512

Outcome = Literal["ok", "tool_error", "infrastructure_error", "cancelled"]


@dataclass(eq=False)
class Rollout:
    """One rollout. task: None when it has ended."""

    id: str
    body: OpenRolloutRequest
    task: HubTask | None
    token: str = field(repr=False)
    state: Literal["open", "closed", "expired"] = "open"
    """`expired`: the lease ran out, or someone else closed the task."""
    counts: dict[Outcome, int] = field(
        default_factory=lambda: {"ok": 0, "tool_error": 0, "infrastructure_error": 0, "cancelled": 0}
    )
    calls: deque[Json] = field(default_factory=lambda: deque(maxlen=_MOST_CALLS), repr=False)

    def record(self, call: Call, outcome: str, seconds: float) -> None:
        kind = _kind(call, outcome)
        if not call.is_tool_call and kind != "infrastructure_error":
            return  # a list of tools that worked
        self.counts[kind] += 1
        sent_at = call.delivery.sent_at
        waited = seconds if sent_at is None else sent_at - (anyio.current_time() - seconds)
        self.calls.append(
            {
                "server": call.server,
                "tool": call.tool,
                "outcome": kind,
                "error": outcome if kind not in ("ok", "cancelled") and outcome != "tool_error" else None,
                "seconds": round(seconds, 4),
                "waited_s": round(min(max(waited, 0.0), seconds), 4),
            }
        )

    def end(self, state: Literal["closed", "expired"]) -> None:
        if self.state == "open":
            self.state, self.task = state, None

    def report(self) -> Json:
        return {
            "id": self.id,
            "run": self.body.run,
            "state": self.state,
            "counts": dict(self.counts),
            "calls": list(self.calls),
            "omitted_calls": sum(self.counts.values()) - len(self.calls),
        }


class Rollouts:
    """The rollouts of one hub, and their routes. lease: seconds, for rollouts that request none."""

    def __init__(self, hub: Hub, *, lease: float) -> None:
        self._hub = hub
        self._lease = lease
        self._open: dict[str, Rollout] = {}
        self._ended: dict[str, Rollout] = {}
        self._by_key: dict[str, Rollout] = {}
        self._opening: SingleFlight[str, Rollout] = SingleFlight()
        hub.observers.append(self)

    def __repr__(self) -> str:
        return f"<Rollouts open={len(self._open)} ended={len(self._ended)}>"

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Endpoint]] = [
            ("POST", "/v1/rollouts", self.open_rollout),
            ("GET", "/v1/rollouts", self.list_rollouts),
            ("GET", "/v1/rollouts/{id}", self.show_rollout),
            ("DELETE", "/v1/rollouts/{id}", self.close_rollout),
            ("POST", "/v1/rollouts/{id}/renew", self.renew_rollout),
        ]
        return [Route(path, answering(endpoint), methods=[method]) for method, path, endpoint in table]

    def task_of(self, token: str) -> str | None:
        """Return the id of the task that a token opens; None if it is wrong or its rollout has ended."""
        rollout = self._open.get(token.removeprefix(TOKEN_PREFIX).partition(".")[0])
        if rollout is None or not hmac.compare_digest(token.encode(), rollout.token.encode()):
            return None
        return rollout.id if self._is_open(rollout) else None

    # --- the observer of calls --------------------------------------------------------------------------------------

    def began(self, call: Call) -> None:
        pass

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        if (rollout := self._open.get(call.task_id)) is not None:
            rollout.record(call, outcome, seconds)

    # --- the routes -------------------------------------------------------------------------------------------------

    async def open_rollout(self, request: Request) -> Response:
        """Open a rollout: a task, and a token that opens only this task at `/mcp`."""
        body = await read_body(request, OpenRolloutRequest)
        self._sweep()
        key = body.idempotency_key
        if key is None:
            rollout = await self._opened(body)
        else:
            rollout = self._by_key.get(key) or await self._opening.run(key, lambda: self._opened(body))
            if rollout.body != body:
                raise ConfigError(f"the idempotency key {key!r} was used with another body; use a new key")
        task = self._task(rollout)
        answer = {
            "id": rollout.id,
            "run": body.run,
            "servers": list(task.servers),
            "lease_s": finite(task.lease),
            "token": rollout.token,
            "mcp": {
                "server_name": "toolhub",
                "url_path": "/mcp",
                "transport": "http",
                "headers": {"Authorization": f"Bearer {rollout.token}"},
            },
        }
        return json_response(answer, 201)

    async def list_rollouts(self, request: Request) -> Response:
        """List the ids of the open rollouts."""
        self._sweep()
        return json_response({"rollouts": list(self._open)})

    async def show_rollout(self, request: Request) -> Response:
        """Report the rollout's calls: whose fault errors were, and how long each call took."""
        self._sweep()
        return json_response(self._rollout(request).report())

    async def renew_rollout(self, request: Request) -> Response:
        """Renew the rollout's lease."""
        task = self._task(self._rollout(request))
        await task.renew()
        return json_response({"lease_s": finite(task.lease)})

    async def close_rollout(self, request: Request) -> Response:
        """End the rollout with all its processes; return its report. It is no error if it has ended."""
        self._sweep()
        rollout = self._rollout(request)
        if rollout.task is not None:
            await self._hub.close_task(rollout.id)
            self._end(rollout, "closed")
        return json_response(rollout.report())

    async def _opened(self, body: OpenRolloutRequest) -> Rollout:
        rollout_id = f"rollout-{secrets.token_hex(8)}"
        configured = self._hub.config.servers
        if unknown := [name for name in body.servers or () if name not in configured]:
            raise ConfigError(
                f"the hub's config has no server {unknown[0]!r}; it has: {', '.join(configured) or 'none'}"
            )
        task = await self._hub.open_task(
            rollout_id,
            run=body.run,
            labels=body.labels,
            servers=None if body.servers is None else {name: configured[name] for name in body.servers},
            only_these=body.servers is not None,
            lease=body.lease_s or self._lease,
            weight=body.weight,
        )
        token = f"{TOKEN_PREFIX}{rollout_id}.{secrets.token_urlsafe(32)}"
        rollout = self._open[rollout_id] = Rollout(rollout_id, body, task, token)
        if body.idempotency_key is not None:
            self._by_key[body.idempotency_key] = rollout
        return rollout

    def _rollout(self, request: Request) -> Rollout:
        rollout_id = request.path_params["id"]
        rollout = self._open.get(rollout_id) or self._ended.get(rollout_id)
        if rollout is None:
            raise TaskClosed(f"no rollout {rollout_id!r}: it ended long ago, or the hub was restarted")
        return rollout

    def _task(self, rollout: Rollout) -> HubTask:
        task = rollout.task
        if task is None or not self._is_open(rollout):
            raise TaskClosed(
                f"rollout {rollout.id!r} has ended: it was closed, or its lease ran out; open another one "
                "(with an idempotency key of its own)"
            )
        return task

    def _is_open(self, rollout: Rollout) -> bool:
        return rollout.task is not None and self._hub.is_open(rollout.task)

    def _sweep(self) -> None:
        """Note which rollouts have lost their task: nobody has renewed their lease."""
        for rollout in [one for one in self._open.values() if not self._is_open(one)]:
            self._end(rollout, "expired")

    def _end(self, rollout: Rollout, state: Literal["closed", "expired"]) -> None:
        rollout.end(state)
        if self._open.pop(rollout.id, None) is not None:
            self._ended[rollout.id] = rollout
        while len(self._ended) > _MOST_ENDED:
            forgotten = self._ended.pop(next(iter(self._ended)))
            self._by_key.pop(forgotten.body.idempotency_key or "", None)


def _kind(call: Call, outcome: str) -> Outcome:
    if outcome in ("ok", "tool_error", "cancelled"):
        return cast(Outcome, outcome)
    return "infrastructure_error" if is_fault_of_infrastructure(outcome, call.delivery.sent) else "tool_error"
