"""Pure rules of the gateway: which server a name or a URI is for, how ids are rewritten, what changes between eras."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from toolhub.channel import bridge
from toolhub.channel.base import Refused
from toolhub.channel.mcp import with_subscription_id
from toolhub.model import Json
from toolhub.serve.mcp.client import ClientRequest
from toolhub.serve.mcp.handles import taken_handle, with_handle
from toolhub.serve.mcp.merged import MOST_TASKS, OwnerIndex, Subscription
from toolhub.serve.mcp.names import Owned, callable_names, matches_template, near_names, split_name
from toolhub.serve.mcp.streams import EventLog
from toolhub.task import HubTask

pytestmark = pytest.mark.quick

LEVEL = "io.modelcontextprotocol/logLevel"
VERSION = "io.modelcontextprotocol/protocolVersion"


# --- names and URIs -------------------------------------------------------------------------------------------------


def test_a_qualified_name_always_works_and_a_plain_one_while_it_is_unique() -> None:
    one, other, alone = Owned("a", "read"), Owned("b", "read"), Owned("b", "write")
    names = callable_names([one, other, alone], "collision")
    assert names == {"a__read": one, "b__read": other, "b__write": alone, "write": alone}


def test_an_ambiguous_name_leads_to_its_qualified_forms() -> None:
    names = callable_names([Owned("clock", "get_time"), Owned("time", "get_time")], "collision")
    assert near_names("get_time", names) == ["clock__get_time", "time__get_time"]


def test_a_mistyped_name_leads_to_a_similar_one() -> None:
    assert near_names("serch", callable_names([Owned("web", "search")], "collision"))[0] == "search"


def test_a_server_s_name_may_contain_the_separator() -> None:
    assert split_name("a__b__read", ["a", "a__b"]) == Owned("a__b", "read")
    assert split_name("c__read", ["a", "a__b"]) is None


@pytest.mark.parametrize(
    ("uri", "template", "fits"),
    [
        ("test://template/7/data", "test://template/{id}/data", True),
        ("test://template/7/8/data", "test://template/{id}/data", False),
        ("file:///a/b", "file:///{+path}", True),
        ("file:///a/b", "file:///{path*}", True),
        ("test://a.b", "test://a{x}b", True),
        ("test://axb", "test://a.b", False),
        ("search://?q=1", "search://{?q}", True),
        ("a://1/2/3", "a://{x}/{y}/{z}", True),
        ("a://1-2-3", "a://{x}-{y}", True),
        ("a://", "a://{x}", True),
        ("a://1", "a://{x}/", False),
    ],
)
def test_a_uri_fits_the_templates_it_can_come_from(uri: str, template: str, fits: bool) -> None:
    assert matches_template(uri, template) == fits


@pytest.mark.parametrize("expression", ["{+x}", "{x}", "a{+x}", "{x}a"])
def test_no_template_of_a_server_makes_the_hub_try_ways_without_end(expression: str) -> None:
    assert not matches_template("x://" + "a" * 4000, "x://" + expression * 16 + "!")
    assert not matches_template("x://a", "x://" + "{x}" * 1000)


# --- ids and handles ------------------------------------------------------------------------------------------------


def test_a_subscription_gets_the_id_of_the_client_s_request_and_keeps_the_rest() -> None:
    value = {"uri": "u", "_meta": {"io.modelcontextprotocol/subscriptionId": 17, "x": 1}}
    assert with_subscription_id(value, "mine") == {
        "uri": "u",
        "_meta": {"io.modelcontextprotocol/subscriptionId": "mine", "x": 1},
    }


@pytest.mark.parametrize(
    "params",
    [{"_meta": {"toolhub/task": "h", "x": 1}}, {"arguments": {"toolhub_task": "h", "x": 1}}],
)
def test_a_handle_is_taken_out_of_a_request(params: dict[str, dict[str, object]]) -> None:
    (where,) = params
    assert taken_handle(params) == ("h", {where: {"x": 1}})


@pytest.mark.parametrize("state", ["the server's own: state", None])
def test_a_handle_in_the_state_of_a_request_leaves_the_server_s_state_as_it_was(state: str | None) -> None:
    interim = {"resultType": "input_required", "inputRequests": {}}
    carried = with_handle(interim | ({"requestState": state} if state is not None else {}), "h")
    assert carried["_meta"] == {"toolhub/task": "h"}
    again = {"name": "n", "requestState": carried["requestState"]}
    assert taken_handle(again) == ("h", {"name": "n"} | ({"requestState": state} if state is not None else {}))


def test_a_handle_in_the_id_of_a_task_leaves_the_server_s_id_as_it_was() -> None:
    begun = with_handle({"resultType": "task", "taskId": "theirs:1", "status": "working"}, "h")
    assert begun["taskId"] != "theirs:1" and begun["status"] == "working"
    assert taken_handle({"taskId": begun["taskId"]}) == ("h", {"taskId": "theirs:1"})


def test_a_request_without_a_handle_stays_as_it_is() -> None:
    params = {"name": "n", "_meta": {"progressToken": 1}, "requestState": "theirs", "taskId": "theirs"}
    assert taken_handle(params) == (None, params)


class Messages:
    """The stream to a client, as a list."""

    def __init__(self) -> None:
        self.sent: list[Json] = []

    def send(self, message: Json) -> None:
        self.sent.append(message)

    def close_early(self) -> None:
        raise AssertionError("this stream goes on")


def test_a_subscription_to_several_servers_passes_on_what_was_asked_for_and_nothing_else() -> None:
    stream = Messages()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["test://a"], "taskIds": ["t"]}
    request = ClientRequest("mine", "subscriptions/listen", {"notifications": wanted}, cast(HubTask, None), stream)
    subscription = Subscription(request)
    notices: list[tuple[str, Json | None]] = [
        ("notifications/tools/list_changed", None),
        ("notifications/prompts/list_changed", None),
        ("notifications/resources/updated", {"uri": "test://a"}),
        ("notifications/resources/updated", {"uri": "test://b"}),
        ("notifications/tasks", {"taskId": "t", "status": "working"}),
        ("notifications/tasks", {"taskId": "other", "status": "working"}),
        ("notifications/subscriptions/acknowledged", {"notifications": wanted}),
    ]
    for method, params in notices:
        subscription.notify(method, params)
    meta = {"io.modelcontextprotocol/subscriptionId": "mine"}
    assert [(message["method"], message["params"]) for message in stream.sent] == [
        ("notifications/tools/list_changed", {"_meta": meta}),
        ("notifications/resources/updated", {"uri": "test://a", "_meta": meta}),
        ("notifications/tasks", {"taskId": "t", "status": "working", "_meta": meta}),
    ]


# --- tasks of servers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda task: {"resultType": "task", **task}, lambda task: {"task": task}])
def test_the_servers_of_tasks_are_remembered_and_their_number_is_bounded(wrap: Callable[[Json], Json]) -> None:
    known = OwnerIndex()
    for number in range(MOST_TASKS + 1):
        known.remember_task("server", wrap({"taskId": str(number)}))
    assert len(known.tasks) == MOST_TASKS and "0" not in known.tasks and known.tasks[str(MOST_TASKS)] == "server"


# --- between the generations ----------------------------------------------------------------------------------------


def test_an_older_server_sees_no_envelope_and_everything_else() -> None:
    params = {"name": "n", "x": 1, "_meta": {VERSION: "2026-07-28", "progressToken": 3}, "inputResponses": {}}
    assert bridge.to_handshake("tools/call", params) == {"name": "n", "x": 1, "_meta": {"progressToken": 3}}
    assert bridge.to_handshake("tools/list", {"_meta": {VERSION: "2026-07-28"}}) is None


def test_an_older_server_s_list_may_not_be_cached_and_its_call_has_no_hints() -> None:
    assert bridge.from_handshake("tools/list", {"tools": []}) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "tools": [],
    }
    assert bridge.from_handshake("tools/call", {"content": [], "x": 1}) == {
        "resultType": "complete",
        "content": [],
        "x": 1,
    }


def test_a_modern_server_hears_who_the_client_is() -> None:
    hello = {"clientInfo": {"name": "c", "version": "1"}, "capabilities": {"sampling": {}}}
    meta = bridge.to_modern("tools/call", {"name": "n"}, hello, "info")["_meta"]
    assert meta["io.modelcontextprotocol/clientInfo"] == hello["clientInfo"]
    assert meta["io.modelcontextprotocol/clientCapabilities"] == hello["capabilities"]
    assert (meta[VERSION], meta[LEVEL]) == ("2026-07-28", "info")


@pytest.mark.parametrize("method", ["tasks/get", "subscriptions/listen"])
def test_what_an_older_server_cannot_know_is_refused(method: str) -> None:
    with pytest.raises(Refused, match=method):
        bridge.to_handshake(method, {})


def test_log_lines_reach_only_those_who_asked_for_their_level() -> None:
    asking = {"_meta": {LEVEL: "warning"}}
    assert bridge.wants_log(asking, "error") and bridge.wants_log(asking, "warning")
    assert not bridge.wants_log(asking, "info") and not bridge.wants_log({}, "error")


# --- events ---------------------------------------------------------------------------------------------------------


def test_finished_answers_are_kept_for_a_client_that_resumes_and_their_number_is_bounded() -> None:
    log = EventLog()
    streams = [log.open(is_resumable=True) for _ in range(200)]
    for stream in streams:
        stream.finish({"id": 1})
    log.open(is_resumable=True)
    assert log.find("200_1") == (streams[-1], 1) and log.find("1_1") is None
    assert sum(log.find(f"{number}_1") is not None for number in range(1, 201)) == 64


def test_an_invented_event_id_finds_nothing() -> None:
    log = EventLog()
    log.open(is_resumable=True)
    keys = ("", "1", "1_x", "9_1", "_", "1_" + "9" * 5000, "1_\N{ARABIC-INDIC DIGIT ONE}")
    assert [log.find(key) for key in keys] == [None] * 7
