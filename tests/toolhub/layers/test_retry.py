"""What is repeated: only what cannot be executed twice, or may be, and never a loss of state."""

from __future__ import annotations

import pytest
from in_memory_hub import a_call

from toolhub.errors import CallTimeout, Overloaded, SessionLost, StartError
from toolhub.layers.retry import ATTEMPTS, retry
from toolhub.limits.backoff import RetryBudget
from toolhub.model import Result, ToolPolicy

pytestmark = pytest.mark.anyio

DONE = Result({"content": []})


class Server:
    """Fails as told, then answers; counts retries through the layer's callback."""

    def __init__(self, *failures: Exception, budget: RetryBudget | None = None) -> None:
        self.failures, self.sends, self.retries = list(failures), 0, 0
        self.call = retry(budget or RetryBudget(), on_retry=self.count)(self.send)

    async def send(self, call) -> Result:
        self.sends += 1
        call.delivery.mark_sent(0.0)
        if self.failures:
            raise self.failures.pop(0)
        return DONE

    def count(self) -> None:
        self.retries += 1


def lost(sent="maybe", **fields) -> SessionLost:
    return SessionLost("it died", sent=sent, **fields)


async def test_a_call_that_was_not_sent_is_repeated():
    server = Server(lost("no"))
    assert await server.call(a_call()) is DONE
    assert (server.sends, server.retries) == (2, 1)


async def test_a_call_that_may_have_been_executed_is_not_repeated():
    server = Server(lost("maybe"))
    with pytest.raises(SessionLost):
        await server.call(a_call())
    assert (server.sends, server.retries) == (1, 0)


@pytest.mark.parametrize("policy", [ToolPolicy(read_only=True), ToolPolicy(idempotent=True)])
async def test_a_tool_declared_safe_is_repeated_although_it_may_have_been_executed(policy):
    server = Server(lost("maybe"))
    assert await server.call(a_call(policy=policy)) is DONE
    assert server.sends == 2


@pytest.mark.parametrize("sent", ["no", "maybe"])
async def test_a_loss_of_state_is_never_papered_over(sent):
    server = Server(lost(sent, state_lost=True))
    with pytest.raises(SessionLost):
        await server.call(a_call(policy=ToolPolicy(read_only=True, idempotent=True)))
    assert server.sends == 1


@pytest.mark.parametrize("error", [StartError("no"), Overloaded("no"), CallTimeout("no", timeout=1.0), ValueError()])
async def test_other_errors_pass_unrepeated(error):
    server = Server(error)
    with pytest.raises(type(error)) as caught:
        await server.call(a_call(policy=ToolPolicy(idempotent=True)))
    assert caught.value is error
    assert server.sends == 1


async def test_a_server_that_dies_every_time_is_tried_a_bounded_number_of_times():
    server, call = Server(*[lost("no") for _ in range(20)]), a_call()
    with pytest.raises(SessionLost):
        await server.call(call)
    assert (server.sends, server.retries, call.delivery.attempts) == (ATTEMPTS, ATTEMPTS - 1, ATTEMPTS)


async def test_an_outage_is_not_multiplied_by_replays():
    budget = RetryBudget(ratio=0.25, reserve=2.0)
    server = Server(*[lost("no") for _ in range(1000)], budget=budget)
    for _ in range(100):
        with pytest.raises(SessionLost):
            await server.call(a_call())
    assert server.retries == 27
    assert server.sends == 127


async def test_a_replay_waiting_its_turn_is_not_called_sent():
    call, seen = a_call(), []

    async def dispatch(call) -> Result:
        seen.append(call.delivery.sent)
        call.delivery.mark_sent(0.0)
        if len(seen) == 1:
            raise lost("no")
        return DONE

    await retry(RetryBudget(), on_retry=lambda: None)(dispatch)(call)
    assert seen == ["no", "no"]


async def test_a_replay_of_what_may_have_been_executed_stays_maybe_sent():
    call, seen = a_call(policy=ToolPolicy(idempotent=True)), []

    async def dispatch(call) -> Result:
        seen.append(call.delivery.sent)
        call.delivery.mark_sent(0.0)
        if len(seen) == 1:
            raise lost("maybe")
        return DONE

    await retry(RetryBudget(), on_retry=lambda: None)(dispatch)(call)
    assert seen == ["no", "maybe"]
