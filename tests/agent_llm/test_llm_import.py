"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys


def test_the_sdk_is_imported_by_opening_a_client_and_not_before():
    code = (
        "import sys, toolhub_agent, toolhub_agent.llm, toolhub_agent.llm.endpoint_pool; print('openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
