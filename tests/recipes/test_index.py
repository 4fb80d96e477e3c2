"""The index of the recipes."""

from __future__ import annotations

import re

from printed_page import ROOT

RECIPES = ROOT / "docs" / "recipes"


def test_the_index_names_every_recipe_once() -> None:
    named = re.findall(r"^- \[[^]]+\]\((\S+\.md)\): .+\.$", (RECIPES / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in RECIPES.glob("*.md") if path.name != "README.md")


def test_every_recipe_has_a_test() -> None:
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "recipes").glob("test_*.py")}
    assert {path.stem.replace("-", "_") for path in RECIPES.glob("*.md")} - {"README"} <= tests


def test_the_links_between_the_pages_lead_somewhere() -> None:
    links = [
        (page, link)
        for page in RECIPES.glob("*.md")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
