"""Arguments as models write them: read, repaired, or refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.tool_calls.arguments import is_object, read_arguments

JSON_OBJECTS = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@given(JSON_OBJECTS)
def test_what_is_json_is_read_as_it_stands(value):
    assert read_arguments(json.dumps(value)) == (value, None)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_nothing_is_an_empty_object(text):
    assert read_arguments(text) == ({}, None)


def test_top_level_nulls_are_left_out_and_deeper_ones_stay():
    assert read_arguments('{"a": null, "b": {"c": null}}') == ({"b": {"c": None}}, None)


def test_line_breaks_inside_strings_are_kept():
    assert read_arguments('{"code_block": "a = 1\nprint(a)\t"}') == ({"code_block": "a = 1\nprint(a)\t"}, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'q': 'cats', 'safe': True, 'page': None}", {"q": "cats", "safe": True}),
        ('{"q": "cats",}', {"q": "cats"}),
        ('{"q": "cats"', {"q": "cats"}),
        ('```json\n{"q": "cats"}\n```', {"q": "cats"}),
        ('{"q": "cats"}}', {"q": "cats"}),
    ],
)
def test_common_faults_are_repaired(text, expected):
    assert read_arguments(text) == (expected, None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", "a number"),
        ("1.5", "a number"),
        ("null", "null"),
        ('"cats"', "a string"),
        ("true", "a boolean"),
        ('[{"q": "cats"}]', "a list"),
    ],
)
def test_what_is_no_object_is_a_problem_that_names_what_it_is(text, kind):
    assert read_arguments(text) == ({}, f"the arguments must be a JSON object, not {kind}")


@pytest.mark.parametrize("text", ['{"q": 1}{"q": 2}', '{"q": 1}\n{"r": 2}', '{"q": 1} [2]'])
def test_of_several_objects_none_is_chosen(text):
    assert read_arguments(text) == ({}, "the arguments are not valid JSON (there is more than one object)")


@pytest.mark.parametrize("text", ["find me some cats", "q=cats", "NaN nonsense"])
def test_what_cannot_be_repaired_is_a_problem(text):
    arguments, problem = read_arguments(text)
    assert arguments == {}
    assert problem is not None
    assert problem.startswith("the arguments are not valid JSON")


def test_numbers_that_json_does_not_have_are_no_json():
    assert not is_object('{"a": NaN}', strict=False)
    assert read_arguments('{"a": NaN}')[0] == {"a": "NaN"}


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        '{"a":' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a": ' + '("x", ' * 20_000,
        '{"a": "x" y ' + "z" * 100_000,
        ("{" * 100 + '"' + "}" * 100) * 500,
    ],
)
def test_hostile_text_is_refused_without_looking_long(text, monkeypatch):
    import json_repair

    seen = []
    real = json_repair.loads
    monkeypatch.setattr(json_repair, "loads", lambda text, **options: seen.append(len(text)) or real(text, **options))
    arguments, problem = read_arguments(text)
    assert (arguments, problem is None) == ({}, False)
    assert seen == []  # the repair, which takes seconds on these, was not even begun


def test_an_object_nested_too_deeply_to_read_is_a_problem():
    assert "nested too deeply" in (read_arguments('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")[1] or "")


def test_only_a_strict_object_is_strictly_one():
    assert is_object('{"a": "1\n2"}', strict=False)
    assert not is_object('{"a": "1\n2"}', strict=True)
    assert not is_object("[1]", strict=False)
