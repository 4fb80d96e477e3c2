"""The documentation site: its links, its generated reference. `make docs` builds the site itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docsite import links, reference
from docsite.pages import NAVIGATION, SiteFolder

from toolhub.config.schema import field_doc

pytestmark = pytest.mark.quick


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text('<h1 id="top">A</h1><a href="b/c.html#here">c</a><img src="a.svg">')
    (tmp_path / "a.svg").write_text("<svg/>")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.html").write_text('<p id="here"><a href="../index.html#top">a</a>')
    return tmp_path


def test_a_site_whose_links_lead_somewhere_has_no_problems(site: Path) -> None:
    assert links.check(site) == ([], set())


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="d.html">', "leads to no file"),
        ('<a href="c.html#there">', "leads to no anchor"),
        ('<a href="#there">', "leads to no anchor"),
        ('<img src="d.png">', "leads to no file"),
        ('<script src="https://example.org/x.js"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "from elsewhere"),
    ],
)
def test_a_broken_link_and_a_foreign_asset_are_problems(site: Path, html: str, problem: str) -> None:
    page = site / "b" / "c.html"
    page.write_text(page.read_text() + html)
    problems, _ = links.check(site)
    assert len(problems) == 1 and problems[0].startswith("b/c.html: ") and problems[0].endswith(problem)


def test_a_font_that_a_style_loads_from_elsewhere_is_a_problem(site: Path) -> None:
    (site / "a.css").write_text("@font-face {src: url(https://example.org/font.woff2)} p {background: url(a.svg)}")
    assert links.check(site)[0] == ["a.css: loads https://example.org/font.woff2 from elsewhere"]


def test_links_to_elsewhere_are_listed_and_not_followed(site: Path) -> None:
    (site / "b" / "c.html").write_text('<a href="https://example.org/x">x</a>' + (site / "b" / "c.html").read_text())
    assert links.check(site) == ([], {"https://example.org/x"})


def test_every_page_has_a_place_in_the_navigation(tmp_path: Path) -> None:
    stage = SiteFolder(tmp_path)
    stage.fill()
    listed = {
        name
        for page in ("index.md", *(f"{folder}/README.md" for folder in ("decisions", "recipes")))
        if (tmp_path / page).exists()
        for tree in re.findall(r"```{toctree}\n(.*?)```", (tmp_path / page).read_text(), re.DOTALL)
        for line in tree.splitlines()
        if line and not line.startswith(":")
        for name in [(Path(page).parent / line).as_posix() + ".md"]
    }
    assert set(stage.places.values()) - listed == {"index.md"}
    assert NAVIGATION.keys() == {"Start", "How to", "Reference", "Project"}


def test_every_key_of_the_config_has_a_meaning_in_the_reference() -> None:
    without = [
        f"{path}.{name}"
        for path, section in reference.sections()
        for name in section.model_fields
        if not field_doc(section, name)
    ]
    assert without == []


def test_the_reference_of_the_config_has_defaults_bounds_and_sizes() -> None:
    page = reference.config()
    assert "| `task_lease_s` | number, > 0 | `900` |" in page
    assert "(64 MiB)" in page
    assert '| `share` | `task` · `hub` · `call` | `"task"` |' in page
    assert "### `servers.<name>.restart`" in page


def test_the_reference_of_the_command_line_has_every_command() -> None:
    page = reference.command_line()
    assert {"serve", "call", "doctor", "run"} <= set(re.findall(r"^## `toolhub (\S+)`$", page, re.MULTILINE))


def test_the_reference_of_http_has_every_operation_and_the_bodies() -> None:
    page = reference.http()
    assert "## `POST /v1/tasks/{id}/calls`" in page
    assert "| `timeout_s` | number, > 0 | `null` |" in page


def test_the_reference_of_python_has_all_that_is_public() -> None:
    import toolhub

    page = reference.python()
    assert {name for name in toolhub.__all__ if not re.search(rf"}} toolhub\.{name}\b", page)} == set()
