"""What a value looks like, by MIME type."""

from __future__ import annotations

import base64
import json
import sys
from types import SimpleNamespace

import pytest
from toolhub_sandbox import Display, Execution
from toolhub_sandbox.inside.display import mime_bundle


class Shown:
    """Shows itself as the test says."""

    def __init__(self, **methods):
        for name, value in methods.items():
            setattr(self, name, lambda value=value: value)

    def __repr__(self):
        return "<shown>"


def test_any_value_has_its_repr() -> None:
    assert mime_bundle([1, "a"]) == {"text/plain": "[1, 'a']"}


def test_a_repr_that_fails_is_told_and_not_raised() -> None:
    class Broken:
        def __repr__(self):
            raise ValueError("no")

    assert mime_bundle(Broken()) == {"text/plain": "<Broken whose repr failed: ValueError: no>"}


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("_repr_html_", "text/html"),
        ("_repr_markdown_", "text/markdown"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_latex_", "text/latex"),
    ],
)
def test_text_representations_are_taken_as_they_are(method: str, kind: str) -> None:
    assert mime_bundle(Shown(**{method: "<b>"})) == {"text/plain": "<shown>", kind: "<b>"}


def test_images_are_in_base64_whether_given_as_bytes_or_so() -> None:
    encoded = base64.b64encode(b"PNG").decode()
    assert mime_bundle(Shown(_repr_png_=b"PNG"))["image/png"] == encoded
    assert mime_bundle(Shown(_repr_jpeg_=(encoded, {"width": 1})))["image/jpeg"] == encoded


def test_a_mime_bundle_goes_before_the_methods() -> None:
    bundle = mime_bundle(Shown(_repr_mimebundle_=({"text/html": "a", "x/y": {"k": 1}}, {}), _repr_html_="b"))
    assert bundle == {"text/plain": "<shown>", "text/html": "a", "x/y": '{"k": 1}'}


def test_json_is_text_even_of_what_json_does_not_know() -> None:
    assert json.loads(mime_bundle(Shown(_repr_json_={"a": {1}}))["application/json"]) == {"a": "{1}"}


def test_a_representation_that_fails_or_is_none_is_left_out() -> None:
    def fail():
        raise RuntimeError

    assert mime_bundle(Shown(_repr_html_=None)) == {"text/plain": "<shown>"}
    assert mime_bundle(SimpleNamespace(_repr_html_=fail)).keys() == {"text/plain"}


def test_attributes_that_answer_to_any_name_are_no_representation() -> None:
    class Any:
        def __getattr__(self, name):
            return "text"

    assert mime_bundle(Any()).keys() == {"text/plain"}


def test_the_methods_of_a_class_are_for_its_instances() -> None:
    assert mime_bundle(Shown).keys() == {"text/plain"}


def test_matplotlib_is_not_loaded_to_show_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    mime_bundle(1)
    assert "matplotlib" not in sys.modules


def test_an_execution_finds_its_result_and_its_images() -> None:
    png = base64.b64encode(b"a").decode()
    shown = (Display({"image/png": png}), Display({"text/plain": "3", "text/html": "<i>3</i>"}, is_result=True))
    done = Execution(displays=shown)
    assert (done.result, done.images, shown[1].html) == ("3", (b"a",), "<i>3</i>")
    assert (Execution().result, Execution().images) == (None, ())
