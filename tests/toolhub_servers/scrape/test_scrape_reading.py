"""`convert_to_markdown` of tool-reading and of tool-reader: schemas, sentences, and which files may be read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from toolhub_servers.scrape import reader, reading
from toolhub_servers.scrape.model import DATASET_REFUSAL
from website import documents, standins
from website.site import Site

from tests.toolhub_servers.scrape.scrape_stage import answer, hosted, refusal, serving
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

# As the reference servers publish them, letter by letter.
READING = '{"properties": {"uri": {"title": "Uri", "type": "string"}}, "required": ["uri"], "type": "object"}'
READER = (
    '{"properties": {"uri": {"title": "Uri", "type": "string"}}, "required": ["uri"], '
    '"title": "convert_to_markdownArguments", "type": "object"}'
)
TOOL = "convert_to_markdown"
NO_FOLDERS = "no local files may be read here: the option 'local_dirs' of this server is not set"

Serve = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=[reading, reader], ids=["reading", "reader"])
def serve(request: pytest.FixtureRequest, site: Site, resources: SharedResources) -> Serve:
    """Either server: what they convert, they convert alike."""
    return _serve(request.param, site, resources)


@pytest.fixture
def serve_reading(site: Site, resources: SharedResources) -> Serve:
    return _serve(reading, site, resources)


@pytest.fixture
def serve_reader(site: Site, resources: SharedResources) -> Serve:
    return _serve(reader, site, resources)


def _serve(module: Any, site: Site, resources: SharedResources) -> Serve:
    @asynccontextmanager
    async def serve_(**options: Any) -> AsyncIterator[Client]:
        usual = {"web": {"allow_private": [site.authority]}, **options}
        async with serving(module.create_server(context=hosted(resources), **usual)) as client:
            yield client

    return serve_


@pytest.mark.parametrize(("module", "schema"), [(reading, READING), (reader, READER)])
async def test_the_tool_has_the_schema_that_the_models_know(module: Any, schema: str) -> None:
    (tool,) = await module.create_server().list_tools()
    assert tool.name == TOOL
    assert json.dumps(tool.input_schema) == schema
    assert tool.output_schema is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/article", "# The harbour of Emden"),
        ("/report.pdf", "The turnover was 17 million."),
        ("/letter.docx", "# Dear reader"),
        ("/data.json", '"name": "Müller"'),
    ],
)
async def test_a_page_is_converted(serve: Serve, site: Site, path: str, text: str) -> None:
    async with serve() as client:
        assert text in await answer(client, TOOL, uri=f" {site.url}{path} ")


async def test_jina_may_be_the_reader(serve: Serve, site: Site) -> None:
    jina = {"jina_api_key": standins.JINA_KEY, "jina_base_url": site.jina_url}
    async with serve(readers=["jina"], **jina) as client:
        assert "Read by [Jina]" in await answer(client, TOOL, uri=f"{site.url}/article")


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_a_file_below_the_folders_is_converted(serve: Serve, tmp_path: Path, host: str) -> None:
    (tmp_path / "a letter.docx").write_bytes(documents.docx("Dear reader", "The pier is closed."))
    async with serve(local_dirs=[str(tmp_path)]) as client:
        told = await answer(client, TOOL, uri=f"file://{host}{tmp_path}/a%20letter.docx")
    assert told == "# Dear reader\n\nThe pier is closed."


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("data:,Hello%2C%20World", "Hello, World"),
        ("data:text/plain;charset=koi8-r,%C4%C5%CE%D8", "день"),
        ("data:text/html,<html><title>T</title><p>One <b>two</b>", "One **two**"),
        ("data:;base64," + base64.b64encode(b"plain text").decode(), "plain text"),
        ("DATA:application/pdf;base64," + base64.b64encode(documents.pdf("On paper")).decode(), "On paper"),
    ],
)
async def test_data_is_converted(serve: Serve, uri: str, text: str) -> None:
    async with serve() as client:
        assert (await answer(client, TOOL, uri=uri)).strip() == text


@pytest.mark.parametrize("uri", ["", "  "])
async def test_reading_tells_that_a_uri_is_missing(serve_reading: Serve, uri: str) -> None:
    async with serve_reading() as client:
        assert await answer(client, TOOL, uri=uri) == "Error: URI parameter is required and cannot be empty."


@pytest.mark.parametrize("uri", ["ftp://a/b", "/etc/passwd", "example.org", "javascript:1"])
async def test_reading_tells_which_schemes_there_are(serve_reading: Serve, uri: str) -> None:
    async with serve_reading() as client:
        assert await answer(client, TOOL, uri=uri) == (
            "Error: Invalid URI scheme. Supported schemes are: http:, https:, file:, data:"
        )


async def test_reader_refuses_another_scheme(serve_reader: Serve) -> None:
    async with serve_reader() as client:
        assert await refusal(client, TOOL, uri="ftp://a/b") == (
            f"Error executing tool {TOOL}: "
            "Unsupported URI scheme: ftp. Supported schemes are: file:, data:, http:, https:"
        )


FAILURES = [
    ("{site}/status/404", "{host} answered 404 Not Found"),
    ("{site}/image.png", "it has no text to read: its content type is image/png (208 bytes)"),
    ("{site}/broken.pdf", "the document could not be converted"),
    ("file://{tmp}/missing.txt", "{tmp}/missing.txt"),
    ("file://elsewhere/a", "Unsupported file URI: file://elsewhere/a. Netloc must be empty or localhost."),
    ("file:///etc/passwd", "it is outside the directories that may be read"),
    ("file://{tmp}/../../../../etc/passwd", "it is outside the directories that may be read"),
    ("file://{tmp}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "it is outside the directories that may be read"),
    ("file://{tmp}/link", "it is outside the directories that may be read"),
    ("data:no comma", "Malformed data URI, missing ',' separator"),
    ("data:;base64,a", "Malformed data URI"),
]


@pytest.mark.parametrize(("uri", "reason"), FAILURES)
async def test_reading_tells_a_failure_as_a_text(
    serve_reading: Serve, site: Site, tmp_path: Path, uri: str, reason: str
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    names = {"site": site.url, "host": site.authority, "tmp": str(tmp_path)}
    async with serve_reading(local_dirs=[str(tmp_path)]) as client:
        told = await answer(client, TOOL, uri=uri.format(**names))
    assert told.startswith(f"Error: Tool execution failed: {reason.format(**names)}")


@pytest.mark.parametrize(("uri", "reason"), FAILURES)
async def test_reader_tells_a_failure_as_an_error(
    serve_reader: Serve, site: Site, tmp_path: Path, uri: str, reason: str
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    names = {"site": site.url, "host": site.authority, "tmp": str(tmp_path)}
    async with serve_reader(local_dirs=[str(tmp_path)]) as client:
        told = await refusal(client, TOOL, uri=uri.format(**names))
    assert told.startswith(f"Error executing tool {TOOL}: {reason.format(**names)}")


async def test_without_folders_no_file_is_read(serve_reading: Serve, serve_reader: Serve) -> None:
    async with serve_reading() as client:
        told = await answer(client, TOOL, uri="file:///etc/hostname")
        assert told == f"Error: Tool execution failed: {NO_FOLDERS}"
    async with serve_reader() as client:
        assert NO_FOLDERS in await refusal(client, TOOL, uri="file:///etc/hostname")


async def test_a_dataset_is_refused(serve_reading: Serve, serve_reader: Serve) -> None:
    uri = "https://huggingface.co/datasets/x"
    async with serve_reading() as client:
        assert await answer(client, TOOL, uri=uri) == DATASET_REFUSAL
    async with serve_reader() as client:
        assert DATASET_REFUSAL in await refusal(client, TOOL, uri=uri)


async def test_a_file_beyond_the_limit_is_cut_and_says_so(serve: Serve, site: Site, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * 1001)
    web = {"allow_private": [site.authority], "max_bytes": 1000}
    async with serve(local_dirs=[str(tmp_path)], web=web) as client:
        told = await answer(client, TOOL, uri=f"file://{tmp_path}/long.txt")
    assert told == "x" * 1000 + "\n\n[Only its first 1000 bytes were read; there was more.]"


async def test_what_is_not_installed_is_told_as_a_server_that_is_not_there(
    serve_reading: Serve, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolhub_servers.scrape import readers
    from toolhub_servers.scrape.conversion import NOT_INSTALLED, NoText

    async def offload(*_: Any, **__: Any) -> None:
        raise NoText(f"markitdown is {NOT_INSTALLED}")

    monkeypatch.setattr(readers, "offload", offload)
    async with serve_reading() as client:
        assert await answer(client, TOOL, uri=f"{site.url}/report.pdf") == (
            "Error: Failed to connect to markitdown-mcp server: "
            "markitdown is not installed; pip install 'toolhub-runtime[pages]'"
        )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"local_dirs": ["/no/such/place"]}, "local_dirs: '/no/such/place' is not a directory"),
        ({"colour": "red"}, "option colour: Extra inputs are not permitted"),
        ({"readers": ["lynx"]}, "option readers.0: Input should be 'jina', 'direct' or 'browser'"),
        (
            {"browser": {"allow_private": ["intranet.example:80"]}},
            "option browser: set web.allow_private instead of allow_private here; it holds for all readers",
        ),
        ({"jina_base_url": "r.jina.ai"}, "option jina_base_url: that is not an http(s) URL"),
    ],
)
@pytest.mark.parametrize("module", [reading, reader])
def test_options_that_make_no_sense_are_refused_with_a_sentence(
    module: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        module.create_server(**options)
