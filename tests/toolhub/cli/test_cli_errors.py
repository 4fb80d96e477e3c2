"""`toolhub errors`: what a user reads after an error, without the site."""

from __future__ import annotations

from toolhub_command import Shell


def test_a_failed_command_names_the_command_that_explains_its_error(shell: Shell) -> None:
    failed = shell("tools", "--hub", "unix:///no/hub.sock")
    more = failed.stderr.splitlines()[-1]
    assert failed.returncode == 2 and more == "More: toolhub errors HubUnreachable"
    explained = shell(*more.removeprefix("More: toolhub ").split())
    assert explained.returncode == 0
    assert "\nNo hub answers at the address. Nothing was sent." in explained.stdout
    assert "  cause: it is not started, or elsewhere" in explained.stdout
    assert "  fix: `toolhub serve`, or correct `TOOLHUB_URL`" in explained.stdout


def test_a_name_may_be_written_in_any_case_and_a_wrong_one_is_corrected(shell: Shell) -> None:
    by_name, in_words, wrong = shell.together(
        ["errors", "CallTimeout"], ["errors", "call-timeout"], ["errors", "CallTimout"]
    )
    assert by_name.stdout == in_words.stdout and by_name.stdout.startswith("CallTimeout\n")
    assert wrong.returncode == 2 and "did you mean 'CallTimeout'?" in wrong.stderr


def test_without_a_name_every_error_is_listed_with_its_meaning(shell: Shell) -> None:
    lines = shell("errors", env={"COLUMNS": ""}).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("SessionLost "))
    assert line.split(maxsplit=1)[1].strip() == "The server died."
    assert len(lines) > 40
