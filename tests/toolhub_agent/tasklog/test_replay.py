"""What a resumed task finds in its log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.history import History
from toolhub_agent.tasklog import MAIN, LogUnreadable, TaskLog, read_log
from toolhub_agent.types import Completion, ToolCall, ToolOutcome, Usage

from tests.toolhub_agent.tasklog.written_log import a_history, a_log, a_task, a_turn

pytestmark = pytest.mark.quick


def test_the_history_the_turns_and_the_usage_are_as_they_were(tmp_path):
    log = a_log(tmp_path, fingerprint="abc")
    history, conversation = a_history(log)
    history.append_user("Who?")
    for number in (1, 2, 3):
        a_turn(history, conversation, number)
    replay = read_log(log.path)
    assert [{"role": "system", "content": replay.main.system}, *replay.main.messages] == history.messages()
    assert (replay.main.turns, replay.fingerprint) == (3, "abc")
    assert replay.usage == Usage(600, 30, 540)
    assert [cost["prompt_tokens"] for cost in replay.main.costs if cost] == [100, 200, 300]
    assert replay.is_whole


def test_a_rollback_takes_the_turn_and_its_calls_back(tmp_path):
    log = a_task(tmp_path, turns=2)
    log.close()
    log, replay = TaskLog.resume(log.path)
    history = History("s", journal=log.continued(MAIN), restored=replay.main.messages)
    history.pop_turn()
    again = read_log(log.path).main
    assert again.turns == 1
    assert [call.arguments for call in again.calls] == [{"q": "query 1"}]
    assert again.messages == history.messages()[1:]


def test_only_calls_whose_results_stand_count_as_asked(tmp_path):
    log = a_log(tmp_path)
    history, conversation = a_history(log)
    history.append_user("Who?")
    a_turn(history, conversation, 1)
    a_turn(history, conversation, 2, stop_before_results=True)
    main = read_log(log.path).main
    assert [call.arguments["q"] for call in main.calls] == ["query 1"]
    assert [call.arguments["q"] for call in main.started] == ["query 2"]
    assert main.is_mid_turn
    history.pop_turn()
    main = read_log(log.path).main
    assert (main.started, main.is_mid_turn) == ([], False)


def test_the_request_for_a_summary_is_no_rollback(tmp_path):
    log = a_log(tmp_path)
    history, conversation = a_history(log)
    history.append_user("Who?")
    a_turn(history, conversation, 1)
    history.pop_results()
    history.append_user("Summarise.")
    main = read_log(log.path).main
    assert (main.turns, main.calls) == (1, [])
    assert [message["content"] for message in main.messages] == ["Who?", "turn 1", "Summarise."]


def test_native_results_of_a_turn_are_all_there_or_none(tmp_path):
    log = a_log(tmp_path)
    history, _ = a_history(log, protocol="native")
    history.append_user("Who?")
    history.append_assistant(Completion("", tool_calls=({"id": "a"}, {"id": "b"})))
    calls = [ToolCall(index, "web", "fetch", {}, id=name) for index, name in enumerate("ab")]
    history.append_results([ToolOutcome(call, "x" * 50) for call in calls])
    whole = log.path.read_bytes()
    counts = set()
    for end in range(whole.index(b'"id":"b"') + 50, len(whole) + 1):
        log.path.write_bytes(whole[:end])
        counts.add(sum(message["role"] == "tool" for message in read_log(log.path).main.messages))
    assert counts == {0, 2}


def test_a_new_attempt_begins_with_an_empty_history_and_keeps_the_bill(tmp_path):
    log = a_task(tmp_path, turns=2)
    log.attempt_ended(1, "out of turns")
    assert read_log(log.path).main.messages == []
    history, _ = a_history(log)
    history.append_user("Who?")
    replay = read_log(log.path)
    assert [message["content"] for message in replay.main.messages] == ["Who?"]
    assert replay.main.calls == []
    assert replay.usage == Usage(300, 20, 270)
    assert [attempt["reason"] for attempt in replay.attempts] == ["out of turns"]


def test_sub_agents_have_conversations_of_their_own(tmp_path):
    log = a_task(tmp_path, turns=1)
    session = log.sub_agent_started("agent-browsing", "find it")
    history, conversation = a_history(log, session=session)
    history.append_user("find it")
    a_turn(history, conversation, 1)
    replay = read_log(log.path)
    assert replay.sub_agents == {"agent-browsing_1": "agent-browsing"}
    assert replay.conversations[session].turns == replay.main.turns == 1
    log.sub_agent_ended(session, "agent-browsing")
    assert read_log(log.path).sub_agents == {}


def test_a_server_that_does_not_count_cached_tokens_leaves_them_unknown(tmp_path):
    log = a_log(tmp_path)
    _, conversation = a_history(log)
    conversation.answered(1, Completion("", usage=Usage(10, 1, None)))
    assert read_log(log.path).usage == Usage(10, 1, None)


def test_the_result_is_there(tmp_path):
    log = a_task(tmp_path)
    assert read_log(log.path).result is None
    log.finished("success", "42", summary="It is \\boxed{42}.")
    assert read_log(log.path).result["answer"] == "42"


def test_records_of_a_later_version_are_passed_over(tmp_path):
    log = a_task(tmp_path, turns=1)
    log._record("invention", wonder=True)
    a_turn(History("s", restored=[], journal=log.continued(MAIN)), log.continued(MAIN), 2)
    replay = read_log(log.path)
    assert (replay.main.turns, replay.is_whole) == (2, True)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"[]\n", b'{"kind":"step","at":1}\n', b'{"kind":"task","at":1', b"\x00\xff\n", b'{"kind":["task"]}\n'],
)
def test_a_file_that_is_no_log_is_refused(tmp_path, content):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogUnreadable, match=r"odd\.jsonl"):
        read_log(path)


def test_a_record_of_an_unknown_form_is_refused_by_name(tmp_path):
    log = a_task(tmp_path)
    log._record("popped", session="main")
    with pytest.raises(LogUnreadable, match="popped"):
        read_log(log.path)


@given(share=st.floats(0.2, 1))
def test_a_log_cut_anywhere_is_what_its_whole_records_say_and_can_be_continued(tmp_path_factory, share):
    log = a_task(tmp_path_factory.mktemp("cut"), turns=3)
    log.close()
    whole = log.path.read_bytes()
    cut = whole[: max(int(len(whole) * share), whole.index(b"\n") + 1)]
    log.path.write_bytes(cut)
    before = read_log(log.path)
    assert before.is_whole is cut.endswith(b"\n")
    resumed, replay = TaskLog.resume(log.path)
    resumed.log_step("info", "after", "step")
    resumed.close()
    after = read_log(log.path)
    assert replay.main == before.main == after.main
    assert after.is_whole
    assert after.steps[-1].name == "after"


def test_what_follows_an_unreadable_line_is_not_believed(tmp_path):
    log = a_task(tmp_path, turns=2)
    lines = log.path.read_bytes().splitlines(keepends=True)
    spoilt = next(number for number, line in enumerate(lines) if b"turn 2" in line)
    lines[spoilt] = lines[spoilt][:20] + b"\n"
    log.path.write_bytes(b"".join(lines))
    replay = read_log(log.path)
    assert (replay.main.turns, replay.is_whole) == (1, False)
    log.close()
    resumed, _ = TaskLog.resume(log.path)
    resumed.continued(MAIN).appended([{"role": "assistant", "content": "again"}])
    again = read_log(log.path)
    assert (again.main.turns, again.is_whole) == (2, True)


def test_a_record_that_could_not_be_written_ends_what_is_believed(tmp_path):
    log = a_task(tmp_path, turns=1)
    endless: dict = {}
    endless["self"] = endless
    log.continued(MAIN).appended([{"role": "user", "content": endless}])
    log.continued(MAIN).appended([{"role": "assistant", "content": "to something unknown"}])
    replay = read_log(log.path)
    assert (replay.main.turns, replay.is_whole) == (1, False)
