"""The recording that ships is what record_demo.py makes today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toolhub_agent.replay import player
from toolhub_agent.replay.recording import Trajectory

from tests.toolhub_agent.replay.demo_words import QUESTION, WORDS
from tests.toolhub_agent.replay.record_demo import record

# Of a record: what is the same in every run. Times, counts of tokens and results differ.
STABLE = {
    "task": ("task_id", "description", "env_info", "version"),
    "conversation": ("session",),
    "usage": ("session", "turn", "completion_tokens", "ttft", "seconds"),
    "call_started": ("session", "index", "server", "tool", "arguments"),
    "call_finished": ("session", "index", "server", "tool"),
    "result": ("status", "answer", "summary"),
}


def stable(text: str) -> list[Any]:
    """Records without what varies, in an order that does not depend on which call was faster."""
    records = [json.loads(line) for line in text.splitlines()]
    told = [[record["kind"], *(record[name] for name in STABLE.get(record["kind"], ()))] for record in records]
    return sorted(json.dumps(record) for record in told)


@pytest.mark.anyio
async def test_the_included_recording_is_current(tmp_path: Path):
    now, shipped = await record(tmp_path), player.DEMO_LOG.read_text(encoding="utf-8")
    assert stable(shipped) == stable(now), "run: python tests/toolhub_agent/replay/record_demo.py"


def test_its_words_are_ours_and_its_first_line_says_so():
    first = json.loads(player.DEMO_LOG.read_text(encoding="utf-8").splitlines()[0])
    assert "written by hand" in first["env_info"]["note"] and first["description"] == QUESTION
    (main,) = Trajectory.read(player.DEMO_LOG).conversations
    assert tuple(answer.text for answer in main.answers) == WORDS


def test_no_call_in_it_failed_and_no_folder_of_its_maker_is_in_it():
    text = player.DEMO_LOG.read_text(encoding="utf-8")
    finished = [record for record in map(json.loads, text.splitlines()) if record["kind"] == "call_finished"]
    assert len(finished) == 11 and not any(record["error"] for record in finished)
    assert "/tmp" not in text and str(Path.home()) not in text and str(Path(__file__).parents[3]) not in text
