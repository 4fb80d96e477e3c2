"""tool-vqa and tool-vqa-os as a model sees them: every text, and what the services are asked."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from starlette.responses import JSONResponse, PlainTextResponse
from toolhub_servers.models import vqa, vqa_os
from toolhub_servers.models.media import MIB
from toolhub_servers.serving.local_files import ReadableFolders

from tests.toolhub_servers.models.media_standins import KEY, Service, answer, jpeg, mp3, png

pytestmark = pytest.mark.anyio

TOOL = "visual_question_answering"
# As the reference servers publish them, letter by letter.
SCHEMAS = {
    vqa: '{"properties": {"media_path_or_url": {"title": "Media Path Or Url", "type": "string"}, '
    '"question": {"title": "Question", "type": "string"}}, '
    '"required": ["media_path_or_url", "question"], "type": "object"}',
    vqa_os: '{"properties": {"image_path_or_url": {"title": "Image Path Or Url", "type": "string"}, '
    '"question": {"title": "Question", "type": "string"}}, '
    '"required": ["image_path_or_url", "question"], "type": "object"}',
}
SANDBOX_FILE = (
    "[ERROR]: The visual_question_answering tool cannot access sandbox files, please use the local path provided by "
    "original instruction"
)
NOTE = (
    "\nNote: Files from sandbox are not available. You should use local path given in the instruction."
    "\nSupported image formats: jpg, png, gif, webp, bmp, tiff"
    "\nSupported video formats: mp4, mov, avi, mkv, webm"
    "\nURLs must be publicly accessible and start with http:// or https://"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(png())
    return tmp_path


@asynccontextmanager
async def asking_vqa(service: Service, folder: Path | None = None, **options: Any) -> AsyncIterator[Client]:
    given = {"api_key": KEY, "base_url": f"{service.url}/v1", "local_dirs": [str(folder)] if folder else [], **options}
    async with Client(vqa.create_server(**given)) as client:
        yield client


@asynccontextmanager
async def asking_vqa_os(service: Service, folder: Path | None = None, **options: Any) -> AsyncIterator[Client]:
    endpoint = {"base_url": f"{service.url}/v1/chat/completions", "model": "some-vl", "api_key": KEY}
    given = {**endpoint, "local_dirs": [str(folder)] if folder else [], **options}
    async with Client(vqa_os.create_server(**given)) as client:
        yield client


async def ask(client: Client, file: str | Path, question: str = "what is it?") -> str:
    return await answer(client, TOOL, media_path_or_url=str(file), question=question)


async def ask_os(client: Client, file: str | Path, question: str = "what is it?") -> str:
    return await answer(client, TOOL, image_path_or_url=str(file), question=question)


def data_url(content: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("module", SCHEMAS)
async def test_the_tool_has_the_schema_that_the_models_know(module: Any) -> None:
    (tool,) = await module.create_server().list_tools()
    assert (tool.name, json.dumps(tool.input_schema)) == (TOOL, SCHEMAS[module])


@pytest.mark.parametrize("module", SCHEMAS)
async def test_the_description_explains_every_parameter(module: Any) -> None:
    (tool,) = await module.create_server().list_tools()
    assert tool.description and not tool.description.startswith((" ", "\n"))
    assert [name for name in tool.input_schema["properties"] if f"    {name}: " not in tool.description] == []


@pytest.mark.parametrize(
    ("name", "content", "mime"),
    [
        ("a.png", png(), "image/png"),
        ("b.jpg", jpeg(), "image/jpeg"),
        ("c.mp4", b"\0\0\0\x20ftypisom\0\0\2\0", "video/mp4"),
    ],
)
async def test_a_local_file_is_sent_as_a_data_url_behind_the_question(
    service: Service, folder: Path, name: str, content: bytes, mime: str
) -> None:
    (folder / name).write_bytes(content)
    async with asking_vqa(service, folder) as client:
        assert await ask(client, folder / name) == "a red square"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": "gpt-4o",
        "max_tokens": 1024,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is it?"},
                    {"type": "image_url", "image_url": {"url": data_url(content, mime)}},
                ],
            }
        ],
    }


async def test_a_url_is_passed_on_for_the_service_to_fetch(service: Service) -> None:
    async with asking_vqa(service) as client:
        await ask(client, "https://93.184.216.34/a.png")
    (asked,) = service.asked
    shown = asked.json["messages"][0]["content"][1]
    assert shown == {"type": "image_url", "image_url": {"url": "https://93.184.216.34/a.png"}}


async def test_a_private_url_is_not_passed_on(service: Service) -> None:
    async with asking_vqa(service) as client:
        told = await ask(client, f"{service.url}/files/a.png")
    assert told.startswith("[ERROR]: Visual question answering failed during API call: 127.0.0.1:")
    assert "not public" in told and told.endswith(NOTE)
    assert service.asked == []


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/home/user/a.png", SANDBOX_FILE),
        ("ftp://example.org/a.png", "[ERROR]: Invalid URL format. URLs must start with http:// or https://"),
        ("{folder}/none.png", "[ERROR]: File not found: {folder}/none.png"),
        ("{folder}/empty.png", "[ERROR]: File is empty"),
        (
            "{folder}/big.jpg",
            "[ERROR]: File size (20.50MB) exceeds maximum allowed size (20.0MB) for image",
        ),
        ("{folder}/sound.mp3", "[ERROR]: Invalid content type 'audio/mpeg'. Expected image or video file."),
        ("{folder}/pipe", "[ERROR]: Path is not a file: {folder}/pipe"),
    ],
)
async def test_a_file_that_cannot_be_shown_is_told_and_nothing_is_sent(
    service: Service, folder: Path, path: str, told: str
) -> None:
    (folder / "empty.png").touch()
    (folder / "sound.mp3").write_bytes(mp3())
    (folder / "pipe").mkdir()
    with (folder / "big.jpg").open("wb") as file:
        file.truncate(20 * MIB + MIB // 2)
    async with asking_vqa(service, folder) as client:
        assert await ask(client, path.format(folder=folder)) == told.format(folder=folder)
    assert service.asked == []


async def test_a_file_outside_the_folders_is_refused(service: Service, folder: Path) -> None:
    async with asking_vqa(service, folder) as client:
        told = await ask(client, "/etc/passwd")
    assert told.startswith("[ERROR]: Permission denied when reading file: /etc/passwd\n")
    assert service.asked == []


async def test_a_file_that_breaks_is_told(service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ReadableFolders, "open", fail)
    async with asking_vqa(service, folder) as client:
        told = await ask(client, "a.png")
    assert told == (
        f"[ERROR]: Visual question answering failed during file processing: [Errno 5] Input/output error{NOTE}"
    )


async def test_a_missing_key_is_told_by_its_variable_and_its_option(service: Service, folder: Path) -> None:
    async with asking_vqa(service, folder, api_key="") as client:
        told = await ask(client, "a.png")
    assert told == (
        "[ERROR]: Visual question answering failed during API call: "
        f"OPENAI_API_KEY is not set (option 'api_key' of this server){NOTE}"
    )


async def test_a_failed_call_is_told_with_its_reason(service: Service, folder: Path) -> None:
    service.stage(JSONResponse({"error": {"message": "Incorrect API key provided"}}, 401))
    async with asking_vqa(service, folder) as client:
        told = await ask(client, "a.png")
    assert told == (
        "[ERROR]: Visual question answering failed during API call: "
        f"{service.place} answered 401 Unauthorized: Incorrect API key provided{NOTE}"
    )


@pytest.mark.parametrize("empty", [{"choices": []}, {"choices": [{"message": {"content": ""}}]}])
async def test_an_empty_answer_is_told(service: Service, folder: Path, empty: Any) -> None:
    service.stage(JSONResponse(empty))
    async with asking_vqa(service, folder) as client:
        assert await ask(client, "a.png") == "[ERROR]: Received empty response from API"


async def test_an_answer_that_is_no_json_is_told(service: Service, folder: Path) -> None:
    service.stage(PlainTextResponse("<html>"))
    async with asking_vqa(service, folder) as client:
        assert await ask(client, "a.png") == "[ERROR]: Failed to parse API response: it is not JSON ('<html>')"


async def test_options_that_make_no_sense_are_refused_at_once(tmp_path: Path) -> None:
    for wrong in ({"basurl": "x"}, {"timeout_s": 0}, {"local_dirs": [str(tmp_path / "x")]}, {"web": {"retries": -1}}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            vqa.create_server(**wrong)


async def test_the_open_model_gets_the_image_before_the_question(service: Service, folder: Path) -> None:
    async with asking_vqa_os(service, folder) as client:
        assert await ask_os(client, "a.png") == "a red square"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": "some-vl",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": data_url(png(), "image/png")}},
                    {"type": "text", "text": "what is it?"},
                ],
            }
        ],
    }


async def test_the_open_model_gets_what_is_behind_a_url(service: Service) -> None:
    async with asking_vqa_os(service, web={"allow_private": [service.place]}) as client:
        assert await ask_os(client, service.offer("a", jpeg(), "image/jpeg")) == "a red square"
        assert await ask_os(client, data_url(png(), "image/png")) == "a red square"
    shown = [asked.json["messages"][0]["content"][0]["image_url"]["url"] for asked in service.asked if asked.json]
    assert shown == [data_url(jpeg(), "image/jpeg"), data_url(png(), "image/png")]


async def test_a_url_that_has_no_image_is_told(service: Service) -> None:
    async with asking_vqa_os(service, web={"allow_private": [service.place]}) as client:
        url = f"{service.url}/files/none"
        assert await ask_os(client, url) == f"Failed to fetch image from URL: {url}"
        told = await ask_os(client, service.offer("page", b"<html>", "text/html"))
        assert told == "Error: Invalid content type 'text/html'. Expected image or video file."
        assert await ask_os(client, service.offer("empty", b"")) == "Error: Downloaded file is empty"
    assert {asked.path for asked in service.asked} == {"/files/none", "/files/page", "/files/empty"}


async def test_the_open_model_is_shown_nothing_private(service: Service, folder: Path) -> None:
    async with asking_vqa_os(service, folder) as client:
        assert "not public" in await ask_os(client, service.offer("a.png", png()))
        assert (await ask_os(client, "/etc/passwd")).startswith("Error: Permission denied when reading file: /etc/")
        assert await ask_os(client, "/home/user/a.png") == SANDBOX_FILE
        assert await ask_os(client, "file:///etc/passwd") == (
            "Error: Invalid URL format. URLs must start with http:// or https://"
        )
    assert service.asked == []


@pytest.mark.parametrize(("option", "variable"), [("base_url", "VISION_BASE_URL"), ("model", "VISION_MODEL_NAME")])
async def test_what_the_open_model_lacks_is_named(service: Service, folder: Path, option: str, variable: str) -> None:
    async with asking_vqa_os(service, folder, **{option: ""}) as client:
        told = await ask_os(client, "a.png")
    assert told == f"Error: {variable} is not set (option '{option}' of this server)"


async def test_what_goes_wrong_with_the_open_model_is_told(service: Service, folder: Path) -> None:
    service.stage(JSONResponse({"detail": "no key"}, 401), PlainTextResponse("{"), JSONResponse({"choices": []}))
    async with asking_vqa_os(service, folder, api_key="") as client:
        told = [await ask_os(client, "a.png") for _ in range(3)]
    assert told == [
        f"Error: {service.place} answered 401 Unauthorized: no key",
        "Error: the answer of the model cannot be read: it is not JSON ('{')",
        "[ERROR]: Received empty response from API",
    ]
    assert "authorization" not in service.asked[0].headers


async def test_what_the_open_model_was_thinking_is_left_out(service: Service, folder: Path) -> None:
    service.answer = "<think>red? yes.</think>\n\nIt is red."
    async with asking_vqa_os(service, folder) as client:
        assert await ask_os(client, "a.png") == "It is red."
