"""One manager in many threads, event loops and processes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from miroflow_agents import HERE, agent, config, echo_params

from toolhub.miroflow import ToolManager


def test_threads_with_loops_of_their_own_share_a_manager() -> None:
    manager = ToolManager([config("echo", echo_params())])
    together = threading.Barrier(3)

    def thread(name: str) -> list[str]:
        async def calls() -> list[str]:
            texts = [f"{name}{number}" for number in range(10)]
            answers = [await manager.execute_tool_call("echo", "echo", {"text": text}) for text in texts]
            return [answer["result"] for answer in answers]

        together.wait(5)
        return asyncio.run(calls())

    with ThreadPoolExecutor(3) as threads:
        said = list(threads.map(thread, "abc"))
    assert said == [[f"{name}{number}" for number in range(10)] for name in "abc"]
    asyncio.run(manager.aclose())


def test_definitions_may_be_fetched_in_a_loop_that_is_thrown_away() -> None:
    manager = ToolManager([config("echo", echo_params())])
    names = [entry["name"] for entry in asyncio.run(manager.get_all_tool_definitions())]
    assert names == ["echo"]
    assert asyncio.run(manager.execute_tool_call("echo", "echo", {"text": "hi"}))["result"] == "hi"
    asyncio.run(manager.aclose())


def test_a_manager_made_before_a_fork_works_in_pool_workers_and_in_the_parent() -> None:
    # Later Pythons warn of a fork beside threads; ours hold no lock that a child could miss.
    script = """
import asyncio, multiprocessing, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from concurrent.futures import ProcessPoolExecutor
from miroflow_agents import config, echo_params
from toolhub.miroflow import ToolManager

manager = ToolManager([config("echo", echo_params())])

def work(number):
    return asyncio.run(manager.execute_tool_call("echo", "echo", {"text": str(number)}))["result"]

context = multiprocessing.get_context("fork")
with ProcessPoolExecutor(2, mp_context=context) as pool:
    print(*pool.map(work, range(4)))
print(work(4))
with ProcessPoolExecutor(2, mp_context=context) as pool:
    print(*pool.map(work, range(5, 9)))
"""
    done = agent(script, PYTHONPATH=str(HERE))
    assert done.stdout == "0 1 2 3\n4\n5 6 7 8\n", done.stderr
