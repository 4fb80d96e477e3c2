"""A task's log, and the document made of it, hold no secret that the config knows, whoever says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toolhub_agent.sweep import new_log, open_session
from toolhub_agent.types import Task

from toolhub import parse_config

pytestmark = pytest.mark.anyio

SECRETS = {
    "hub": "hub-token-0123",
    "env": 'env-"quoted"-0123',
    "header": "header-token-0123",
    "option": "option-key-0123",
    "sandbox": "profile-password-0123",
    "e2b": "e2b-key-0123",
    "llm": "llm-key-0123",
    "remote": "remote-token-0123",
}


def a_config(state: Path) -> dict[str, Any]:
    return {
        "hub": {"token": SECRETS["hub"], "state_dir": str(state)},
        "servers": {
            "stdio": {"command": "x", "env": {"MY_API_KEY": SECRETS["env"]}},
            "http": {"url": "http://127.0.0.1:9", "headers": {"Authorization": f"Bearer {SECRETS['header']}"}},
            "hosted": {"builtin": "m:f", "options": {"serper": {"api_key": SECRETS["option"]}}},
        },
        "sandbox": {
            "profiles": {"own": {"env": {"DB_PASSWORD": SECRETS["sandbox"]}}},
            "e2b": {"api_key": SECRETS["e2b"]},
        },
        "llm": {"endpoints": ["http://127.0.0.1:9"], "api_key": SECRETS["llm"]},
    }


async def test_what_a_tool_repeats_of_the_config_s_secrets_is_not_in_the_task_s_log(tmp_path: Path) -> None:
    config = parse_config(a_config(tmp_path / "state"), environ={})
    assert config.llm is not None
    async with open_session(config, config.llm, hub="http://127.0.0.1:9", token=SECRETS["remote"]) as session:
        log = new_log(session, tmp_path / "logs", Task("t1", f"say {SECRETS['env']}"))
        said = " ".join(SECRETS.values())
        log.conversation("main", said).appended([{"role": "user", "content": json.dumps({"raw": said})}])
        log.log_step("info", "step", said, {said: [said]})
        written = log.path.read_text()
        document = log.write_miroflow()
        log.close()
    assert document is not None
    for text in (written, document.read_text()):
        assert "0123" not in text and "quoted" not in text and "***" in text
