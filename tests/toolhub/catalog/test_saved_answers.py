"""What servers told their clients first: equal clients get it, others do not, and it is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_hub import a_spec

from toolhub.catalog.answers import SavedAnswers, answer_name
from toolhub.catalog.store import CatalogStore
from toolhub.model import ClientProfile, Json

HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
CLIENT = ClientProfile.of("handshake", HELLO)
NAME = answer_name("tools/list", CLIENT)


def test_another_life_gives_an_equal_client_the_same_answer(tmp_path: Path) -> None:
    SavedAnswers(CatalogStore(tmp_path)).put(a_spec(), NAME, {"tools": [], "x": 1})
    later = SavedAnswers(CatalogStore(tmp_path))
    assert later.get(a_spec(), NAME) == {"tools": [], "x": 1}
    assert later.get(a_spec(args=["other"]), NAME) is None


@pytest.mark.parametrize(
    "other",
    [
        ClientProfile.of("modern", HELLO),
        ClientProfile.of("handshake", HELLO | {"protocolVersion": "2025-06-18"}),
        ClientProfile.of("handshake", HELLO | {"capabilities": {"roots": {}}}),
        ClientProfile.of("handshake", HELLO | {"clientInfo": {"name": "d", "version": "1"}}),
    ],
)
def test_a_client_that_says_something_else_about_itself_gets_no_other_s_answer(other: ClientProfile) -> None:
    assert answer_name("tools/list", other) != NAME


def test_a_server_has_a_bounded_number_of_answers_and_keeps_the_newest(tmp_path: Path) -> None:
    answers = SavedAnswers(CatalogStore(tmp_path))
    for number in range(100):
        answers.put(a_spec(), str(number), {"number": number})
    kept = CatalogStore(tmp_path).read(a_spec()) or []
    assert [one["name"] for one in kept] == [str(number) for number in range(52, 100)]
    assert answers.get(a_spec(), "51") is None


def test_a_file_that_makes_no_sense_is_ignored(tmp_path: Path) -> None:
    CatalogStore(tmp_path).write(a_spec(), [{"name": NAME, "answer": "no object"}, {"name": "other"}])
    assert SavedAnswers(CatalogStore(tmp_path)).get(a_spec(), NAME) is None
