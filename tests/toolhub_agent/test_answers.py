"""Finding the boxed answer."""

from __future__ import annotations

import pytest
from toolhub_agent.agent import boxed_answer, boxed_contents

pytestmark = pytest.mark.quick


def test_the_last_box_is_the_answer():
    assert boxed_answer(r"first \boxed{1}, no: \boxed{42}") == "42"


def test_braces_inside_a_box_are_matched():
    assert boxed_contents(r"\boxed{\frac{1}{2}} and \boxed{ {a} {b} }") == [r"\frac{1}{2}", "{a} {b}"]


@pytest.mark.parametrize("nothing", ["", " ", "?", "???", "…", "...", "unknown", "Unknown"])
def test_a_placeholder_is_no_answer_and_does_not_hide_an_earlier_one(nothing):
    assert boxed_answer(rf"\boxed{{7}} then \boxed{{{nothing}}}") == "7"
    assert boxed_answer(rf"\boxed{{{nothing}}}") is None


def test_a_box_that_is_never_closed_is_no_answer():
    assert boxed_answer(r"\boxed{3} \boxed{never closed") == "3"


def test_a_text_without_a_box_has_no_answer():
    assert boxed_answer("forty-two") is None
