"""`toolhub doctor` says which key is missing before a run begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_hub import write_config
from toolhub_command import Shell

MIROTHINKER = Path(__file__).parents[2] / "configs" / "mirothinker_1.7.yaml"
# What each server cannot work without, and where its key or address is looked for.
LACKING = {
    "google_search": "serper.api_key",
    "sogou_search": "secret_id",
    "jina_scrape_llm_summary": "summary_llm_base_url",
    "vqa": "api_key",
    "vqa_os": "base_url",
    "transcribe": "api_key",
    "transcribe_os": "base_url",
    "reasoning": "api_key",
    "reasoning_os": "base_url",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What doctor says of servers that have got no option at all."""
    shell = Shell(tmp_path_factory.mktemp("bare"))
    servers = {name: {"builtin": name} for name in LACKING}
    write_config(shell.folder, name="hub.yaml", servers=servers)
    return {one["server"]: one for one in json.loads(shell("doctor", "--json").stdout)["servers"]}


def test_without_keys_the_mirothinker_config_is_told_its_key_and_the_rest_of_it_works(tmp_path: Path) -> None:
    done = Shell(tmp_path)("doctor", "--json", "--config", str(MIROTHINKER))
    servers = {one["server"]: one for one in json.loads(done.stdout)["servers"]}
    assert done.returncode == 1 and done.stderr == ""
    assert "SERPER_API_KEY" in servers["search_and_scrape_webpage"]["error"]
    assert servers["tool-python"]["ok"]


@pytest.mark.parametrize("server", LACKING)
def test_doctor_names_what_a_server_cannot_work_without(server: str, reports: dict[str, Any]) -> None:
    assert LACKING[server] in json.dumps(reports[server]).lower()
