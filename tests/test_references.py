"""What documents refer to exists: files, tests, and the original's defects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"))
    if "results" not in path.parts
)
SOURCES = sorted(
    path
    for folder in ("toolhub", "servers", "sandbox", "agent_loop", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
LINK = re.compile(r"\]\(([^)#\s]+)")
TEST = re.compile(r"`(test_\w+)`")
DEFECT = re.compile(r"\bD-\d+\b")


def test_the_documents_are_found():
    assert {"README.md", "SECURITY.md", "architecture.md"} <= {path.name for path in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file(document):
    targets = [
        link for link in LINK.findall(document.read_text()) if "://" not in link and not link.startswith("mailto:")
    ]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_test_that_a_document_names_exists():
    known = {name for path in SOURCES for name in re.findall(r"def (test_\w+)", path.read_text())}
    known |= {path.stem for path in SOURCES}
    named = {(path.name, name) for path in DOCUMENTS for name in TEST.findall(path.read_text())}
    assert sorted((document, name) for document, name in named if name not in known) == []


def test_every_promise_of_the_security_page_names_a_test():
    _, _, promised = (ROOT / "SECURITY.md").read_text().partition("\n## What is promised")
    promises = re.split(r"\n+- |\n\n", promised.partition("\n## ")[0])
    without = [one.split("\n")[0] for one in promises if one.startswith("**") and not TEST.search(one)]
    assert len([one for one in promises if one.startswith("**")]) > 15 and without == []


def test_every_defect_that_is_cited_is_listed():
    listed = set(DEFECT.findall((ROOT / "docs" / "miroflow_defects.md").read_text()))
    cited = {number for path in (*SOURCES, *DOCUMENTS) for number in DEFECT.findall(path.read_text())}
    assert cited - listed == set()


def test_nothing_refers_to_a_design_that_is_not_here():
    riddle = re.compile(r"design section|\(design |section \d+ of the design")
    wrong = [path.name for path in (*SOURCES, *DOCUMENTS) if path != Path(__file__) and riddle.search(path.read_text())]
    assert wrong == []


@pytest.mark.parametrize("program", ["docsite.structure", "docsite.pictures"])
def test_what_programs_write_into_the_documentation_is_up_to_date(program):
    done = subprocess.run([sys.executable, "-m", program, "--check"], cwd=ROOT / "docs", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
