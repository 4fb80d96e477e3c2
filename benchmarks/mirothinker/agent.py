"""One task of the original agent. Runs in MiroThinker's environment, in its folder apps/miroflow-agent.

    python agent.py mirothinker|toolhub MODEL_URL RESULT

The second variant is MiroThinker with one import changed. RESULT: a file that gets the seconds of the run, those of
its definitions of tools and of its calls, and the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

AGENT = "mirothinker_1.7_keep5_max200"


async def main(manager: str, model: str, result: str) -> None:
    if manager == "toolhub":
        import miroflow_tools.manager

        import toolhub.miroflow

        miroflow_tools.manager.ToolManager = toolhub.miroflow.ToolManager
    from hydra import compose, initialize_config_dir
    from src.core.pipeline import create_pipeline_components, execute_task_pipeline

    chosen = ["llm=qwen-3", f"agent={AGENT}", "benchmark=debug", f"llm.base_url={model}", "llm.api_key=stand-in"]
    with initialize_config_dir(os.path.abspath("conf"), version_base=None):
        cfg = compose("config", overrides=chosen)
    with tempfile.TemporaryDirectory() as logs:
        began = time.perf_counter()
        tools, others, formatter = create_pipeline_components(cfg)
        found = watch(tools)
        _, answer, _, _ = await execute_task_pipeline(
            cfg=cfg,
            task_id="benchmark",
            task_description="What is the answer?",
            task_file_name="",
            main_agent_tool_manager=tools,
            sub_agent_tool_managers=others,
            output_formatter=formatter,
            log_dir=logs,
        )
        found["seconds"] = time.perf_counter() - began
    Path(result).write_text(json.dumps({**found, "answer": answer}))


def watch(tools: Any) -> dict[str, float]:
    """Return the seconds that the manager takes to list its tools and to call them; they grow as it works."""
    found = {"listing_s": 0.0, "calls_s": 0.0}

    def timed(work: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*positional: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await work(*positional, **named)
            finally:
                found[name] += time.perf_counter() - began

        return call

    tools.get_all_tool_definitions = timed(tools.get_all_tool_definitions, "listing_s")
    tools.execute_tool_call = timed(tools.execute_tool_call, "calls_s")
    return found


if __name__ == "__main__":
    # The folder of this file has modules with common names; MiroThinker's own are in the current folder.
    sys.path[0] = os.getcwd()
    asyncio.run(main(*sys.argv[1:]))
