"""MiroFlow's task log, one JSON document, made from the append-only log at the end of the task."""

from __future__ import annotations

import json
import os
from pathlib import Path

from toolhub_agent.tasklog.reader import (
    MAIN,
    LoggedConversation,
    Step,
    TaskRecord,
    clock_text,
    icon_of,
    without_doubles,
)
from toolhub_agent.types import Json


def miroflow_document(record: TaskRecord) -> Json:
    """The document, with every key in MiroFlow's order; `status` is `running` until there is a result."""
    task, result, verdict = record.task, record.result or {}, record.verdict or {}
    sub_agents = {name: said for name, said in record.conversations.items() if name != MAIN}
    current = next(reversed(record.sub_agents), None)
    last_sub_agent = current or next(reversed(sub_agents), None)
    return {
        "status": result.get("status", "running"),
        "start_time": clock_text(task["at"]),
        "end_time": clock_text(result["at"]) if result else "",
        "task_id": record.task_id,
        "input": {"task_description": task.get("description", ""), "task_file_name": task.get("file_name")},
        "ground_truth": task.get("ground_truth", ""),
        "final_boxed_answer": result.get("answer", ""),
        "final_judge_result": verdict.get("result", ""),
        "judge_type": verdict.get("judge_type", ""),
        "eval_details": verdict.get("details"),
        "error": result.get("error", ""),
        "current_main_turn_id": record.main.turns,
        "current_sub_agent_turn_id": sub_agents[last_sub_agent].turns if last_sub_agent in sub_agents else 0,
        "sub_agent_counter": record.sub_agent_counter,
        "current_sub_agent_session_id": current,
        "env_info": task.get("env_info", {}),
        "log_dir": task.get("log_dir", ""),
        "main_agent_message_history": _history_json(record.main),
        "sub_agent_message_history_sessions": {name: _history_json(said) for name, said in sub_agents.items()},
        "step_logs": [_step_json(step) for step in without_doubles(record.steps)],
        "trace_data": {},
    }


def write_miroflow(record: TaskRecord, path: Path) -> None:
    """Write it, readable for its owner; others find the document before or this one, never a part. Raises OSError."""
    text = json.dumps(miroflow_document(record), ensure_ascii=False, indent=2)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # a killed process with the same id left it
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _history_json(conversation: LoggedConversation) -> Json:
    return {"system_prompt": conversation.system, "message_history": conversation.messages}


def _step_json(step: Step) -> Json:
    return {
        "step_name": icon_of(step.level, step.name) + step.name,
        "message": step.message,
        "timestamp": clock_text(step.at),
        "info_level": step.level,
        "metadata": step.metadata,
    }
