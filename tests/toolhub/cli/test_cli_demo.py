"""`toolhub demo`: the kills happen, and nothing is left."""

from __future__ import annotations

from pathlib import Path

from toolhub_command import Shell

from toolhub.scratch import PREFIX


def test_the_demo_runs_to_its_end_with_two_kills_and_no_leftovers(tmp_path: Path) -> None:
    (tmp_path / "tmp" / f"{PREFIX}demo-of-a-demo-that-was-killed" / "state").mkdir(parents=True)
    told = Shell(tmp_path, own_process=True).json("demo", "--agents", "2", env={"TMPDIR": str(tmp_path / "tmp")})
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(told["kills"]) == ["sqlite of agent-2", "time of agent-1"]
    assert told["leftovers"] == 0 and told["deaths"] == 2
    assert [agent["last"] for agent in told["agents"]] == ["done", "done"]
    assert told["no_sandbox"] == "" and {agent["remembered"] for agent in told["agents"]} == {12}
    assert sum(agent["errors"] for agent in told["agents"]) == 1
    assert 0 < told["kept_ms"] < told["spawned_ms"]
