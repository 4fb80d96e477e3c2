"""Makes the recording that ships with `toolhub demo --replay`: the real loop and the real tools, with our words.

    python tests/toolhub_agent/replay/record_demo.py

What a model server would have counted and timed is estimated, and the log says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import anyio
from toolhub_agent.events import NoCallbacks
from toolhub_agent.history import encoded
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.replay import player
from toolhub_agent.replay.player import play
from toolhub_agent.replay.recording import PlaybackPace, RecordedAnswer, RecordedConversation, ReplayLlm, Trajectory
from toolhub_agent.tasklog import MAIN, TaskLog
from toolhub_agent.types import Usage

from tests.toolhub_agent.replay.demo_words import QUESTION, WORDS

TASK = "holm-skerry"
NOTE = (
    "The model's words were written by hand for this demo, and its token counts, TTFT and seconds are not of any "
    "model: tokens are counted as four bytes each, times are the pace of the demo."
)
BYTES_PER_TOKEN = 4
# How fast the words are shown: about 110 tokens a second, like a small model on a large GPU.
CHARS_PER_SECOND = 450
FIRST_TTFT_S, TTFT_S = 0.45, 0.25


def trajectory() -> Trajectory:
    """The words as a recording, without counts."""
    answers = tuple(
        RecordedAnswer(text, ttft=ttft, seconds=round(ttft + len(text) / CHARS_PER_SECOND, 2))
        for text, ttft in zip(WORDS, [FIRST_TTFT_S] + [TTFT_S] * len(WORDS), strict=False)
    )
    return Trajectory(TASK, QUESTION, (RecordedConversation(MAIN, "", answers),))


class CountingLlm(ReplayLlm):
    """Says the words and counts tokens as a server with a prefix cache might: what it has seen before is cached."""

    def __init__(self) -> None:
        super().__init__(trajectory(), PlaybackPace(0, 0))
        self._seen: Counter[str] = Counter()

    def _answer(self, request: LlmRequest) -> RecordedAnswer:
        answer = super()._answer(request)
        prompt = sum(len(encoded(message)) for message in request.messages) // BYTES_PER_TOKEN
        written = len(answer.text.encode()) // BYTES_PER_TOKEN
        usage = Usage(prompt, written, self._seen[request.session])
        self._seen[request.session] = prompt + written
        return replace(answer, usage=usage)


async def record(workdir: Path) -> str:
    """Run the task; returns the log's text, without the folder it was made in."""
    log = TaskLog.create(workdir / "log", TASK, description=QUESTION, env_info={"note": NOTE})
    try:
        result = await play(trajectory(), CountingLlm(), player.demo_config(workdir), NoCallbacks(), log)
    finally:
        log.close()
    assert result.status == "success", result.error
    return log.path.read_text(encoding="utf-8").replace(str(workdir), "/demo")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="toolhub-record-") as folder:
        text = anyio.run(record, Path(folder))
    player.DEMO_LOG.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{player.DEMO_LOG}: {len(text.splitlines())} records\n")


if __name__ == "__main__":
    main()
