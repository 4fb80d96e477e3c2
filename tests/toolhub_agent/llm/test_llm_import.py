"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys


def test_the_client_of_model_servers_needs_no_openai_sdk():
    code = (
        "import sys; sys.modules['openai'] = None\n"
        "import toolhub_agent.agent, toolhub_agent.llm, toolhub_agent.sweep, toolhub_agent.doctor"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
