"""Sandboxes from the command line: `toolhub call` with tool-python, in a hub of its own and in one that is served."""

from __future__ import annotations

from served_hub import served, write_config
from toolhub_command import Shell

SERVERS = {
    "tool-python": {"builtin": "python"},
    "stateless_python": {"builtin": "stateless_python"},
}
CODE = ("call", "tool-python", "run_python_code", '{"code_block": "print(6 * 7)"}')
ANSWER = "Execution(Results: [], Logs: Logs(stdout: ['42\\n'], stderr: []), Error: None)\n"


def test_code_runs_in_a_hub_that_lives_for_one_call(shell: Shell) -> None:
    write_config(shell.folder, name="hub.yaml", servers=SERVERS)
    done = shell(*CODE)
    assert (done.stdout, done.stderr, done.returncode) == (ANSWER, "", 0)


def test_code_runs_in_a_hub_that_is_served(shell: Shell) -> None:
    config = write_config(shell.folder, servers=SERVERS)
    with served(config, "--uds", str(shell.folder / "hub.sock")) as hub:
        client = Shell(shell.folder, hub=f"unix://{hub.uds}")
        first, second = client.together(CODE, ("call", "stateless_python", "python", '{"code": "print(6 * 7)"}'))
        assert (first.stdout, first.stderr, first.returncode) == (ANSWER, "", 0)
        assert second.stdout == ANSWER
        with hub.client() as browser:
            metrics = browser.get("/metrics").text
        assert "toolhub_sandbox_creations_total 2.0" in metrics


def test_doctor_looks_into_a_sandbox(shell: Shell) -> None:
    write_config(shell.folder, name="hub.yaml", servers=SERVERS)
    found = [check for check in shell.json("doctor")["machine"] if check["detail"].startswith("seen from inside")]
    assert [check["status"] for check in found] == ["ok"]
    assert "no network" in found[0]["detail"] and "capabilities 0000000000000000" in found[0]["detail"]


def test_doctor_says_that_nothing_is_isolated(shell: Shell) -> None:
    sandbox = {"backend": "subprocess", "python": "/usr/bin/python3"}
    write_config(shell.folder, name="hub.yaml", servers=SERVERS, sandbox=sandbox)
    told = [check["detail"] for check in shell.json("doctor")["machine"] if check["status"] == "weaker"]
    assert any("no isolation: programs inside can do what the hub's user can" in detail for detail in told)


def test_a_profile_that_does_not_exist_is_named(shell: Shell) -> None:
    servers = {"tool-python": SERVERS["tool-python"] | {"options": {"profile": "date"}}}
    write_config(shell.folder, name="hub.yaml", servers=servers)
    answer = shell(*CODE).stdout
    assert "there is no sandbox profile 'date'; sandbox.profiles has bare, data" in answer
