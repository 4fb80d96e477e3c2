"""tool-transcribe and tool-transcribe-os as a model sees them: every text, and what the services are asked."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from starlette.responses import JSONResponse, PlainTextResponse
from toolhub_servers.models import transcribe, transcribe_os
from toolhub_servers.models.media import MIB

from tests.toolhub_servers.models.media_standins import KEY, Service, answer, mp3, png, wav

pytestmark = pytest.mark.anyio

# As the reference servers publish them, letter by letter.
FILE = '"audio_path_or_url": {"title": "Audio Path Or Url", "type": "string"}'
TRANSCRIPTION = '{"properties": {' + FILE + '}, "required": ["audio_path_or_url"], "type": "object"}'
QUESTION = (
    '{"properties": {' + FILE + ', "question": {"title": "Question", "type": "string"}}, '
    '"required": ["audio_path_or_url", "question"], "type": "object"}'
)
TOOLS = ("audio_transcription", "audio_question_answering")
FAILED = {
    "audio_transcription": "[ERROR]: Audio transcription failed",
    "audio_question_answering": "[ERROR]: Audio question answering failed",
}
SANDBOX_FILE = (
    "[ERROR]: The {0} tool cannot access to sandbox file, please use the local path provided by original instruction"
)
NOTE = (
    "\nNote: Files from sandbox are not available. You should use local path given in the instruction. "
    "The file should be in a common audio format such as MP3, WAV, or M4A."
    "\nNote: YouTube video URL is not supported."
)
URL_NOTE = (
    "\nNote: Files from sandbox are not available. You should use local path given in the instruction. "
    "\nURLs must include the proper scheme (e.g., 'https://') and be publicly accessible. "
    "The file should be in a common audio format such as MP3, WAV, or M4A."
    "\nNote: YouTube video URL is not supported."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.wav").write_bytes(wav(1.5))
    return tmp_path


@asynccontextmanager
async def asking(service: Service, folder: Path | None = None, **options: Any) -> AsyncIterator[Client]:
    given = {"api_key": KEY, "base_url": f"{service.url}/v1", "local_dirs": [str(folder)] if folder else [], **options}
    async with Client(transcribe.create_server(**given)) as client:
        yield client


@asynccontextmanager
async def asking_os(service: Service, folder: Path | None = None, **options: Any) -> AsyncIterator[Client]:
    endpoint = {"base_url": f"{service.url}/v1", "model": "some-whisper", "api_key": KEY}
    given = {**endpoint, "local_dirs": [str(folder)] if folder else [], **options}
    async with Client(transcribe_os.create_server(**given)) as client:
        yield client


async def ask(client: Client, file: str | Path, tool: str = "audio_transcription") -> str:
    question = {"question": "who speaks?"} if tool == "audio_question_answering" else {}
    return await answer(client, tool, audio_path_or_url=str(file), **question)


async def test_the_tools_have_the_schemas_that_the_models_know() -> None:
    listed = await transcribe.create_server().list_tools()
    assert [(tool.name, json.dumps(tool.input_schema)) for tool in listed] == [
        ("audio_transcription", TRANSCRIPTION),
        ("audio_question_answering", QUESTION),
    ]
    (tool,) = await transcribe_os.create_server().list_tools()
    assert (tool.name, json.dumps(tool.input_schema)) == ("audio_transcription", TRANSCRIPTION)


async def test_every_description_explains_every_parameter() -> None:
    for module in (transcribe, transcribe_os):
        for tool in await module.create_server().list_tools():
            assert tool.description and not tool.description.startswith((" ", "\n"))
            assert [name for name in tool.input_schema["properties"] if f"    {name}: " not in tool.description] == []


@pytest.mark.parametrize(
    ("content", "file"), [(wav(), ("audio.wav", "audio/wav")), (mp3(), ("audio.mp3", "audio/mpeg"))]
)
async def test_a_recording_is_transcribed(
    service: Service, folder: Path, content: bytes, file: tuple[str, str]
) -> None:
    service.answer = "good morning"
    (folder / "recording").write_bytes(content)
    async with asking(service, folder) as client:
        assert await ask(client, folder / "recording") == "good morning"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.form == {"model": "gpt-4o-transcribe", "file": (*file, content)}


async def test_a_url_is_downloaded_and_transcribed_without_a_temporary_file(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with asking(service, web={"allow_private": [service.place]}) as client:
        assert await ask(client, service.offer("a.mp3", mp3(), "audio/mpeg")) == "a red square"
    assert service.asked[1].form["file"] == ("audio.mp3", "audio/mpeg", mp3())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "sound", "length"),
    [(wav(1.5), "wav", "1.5"), (mp3(100), "mp3", "2.612")],
)
async def test_a_question_is_answered_with_the_length_of_the_recording(
    service: Service, folder: Path, content: bytes, sound: str, length: str
) -> None:
    service.answer = "a man"
    (folder / "recording").write_bytes(content)
    async with asking(service, folder) as client:
        told = await ask(client, "recording", "audio_question_answering")
    assert told == f"a man\n\nAudio duration: {length} seconds"
    (asked,) = service.asked
    assert asked.path == "/v1/chat/completions" and asked.json["model"] == "gpt-4o-audio-preview"
    system, user = asked.json["messages"]
    assert system == {"role": "system", "content": "You are a helpful assistant specializing in audio analysis."}
    assert user["content"] == [
        {
            "type": "text",
            "text": "Answer the following question based on the given audio information:\n\nwho speaks?",
        },
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": sound}},
    ]


async def test_a_length_that_is_not_known_is_not_told(service: Service, folder: Path) -> None:
    (folder / "a.flac").write_bytes(b"fLaC" + bytes(1000))
    async with asking(service, folder) as client:
        assert await ask(client, "a.flac", "audio_question_answering") == "a red square"
    assert service.asked[0].json["messages"][1]["content"][1]["input_audio"]["format"] == "mp3"


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_file_that_cannot_be_heard_is_told_and_nothing_is_sent(
    service: Service, folder: Path, tool: str
) -> None:
    (folder / "empty.mp3").touch()
    (folder / "picture.mp3").write_bytes(png())
    with (folder / "big.mp3").open("wb") as file:
        file.truncate(25 * MIB + MIB // 4)
    failed = FAILED[tool]
    async with asking(service, folder) as client:
        assert await ask(client, "/home/user/a.wav", tool) == SANDBOX_FILE.format(tool)
        assert await ask(client, folder / "none.mp3", tool) == f"{failed}: File not found: {folder / 'none.mp3'}{NOTE}"
        assert await ask(client, folder / "empty.mp3", tool) == f"{failed}: File is empty"
        assert await ask(client, folder / "big.mp3", tool) == (
            f"{failed}: File size (25.25MB) exceeds maximum allowed size (25.0MB) for audio"
        )
        assert await ask(client, "picture.mp3", tool) == (
            f"{failed}: Invalid content type 'image/png'. Expected audio file."
        )
        assert await ask(client, "sound.example/a.mp3", tool) == (
            f"{failed}: Invalid URL format. URLs must start with http:// or https://{NOTE}"
        )
        assert (await ask(client, "/etc/passwd", tool)).startswith(
            f"{failed}: Permission denied when reading file: /etc/passwd\nNote: it is outside"
        )
    assert service.asked == []


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_download_that_fails_is_told(service: Service, tool: str) -> None:
    async with asking(service, web={"allow_private": [service.place]}) as client:
        assert await ask(client, f"{service.url}/files/none", tool) == (
            f"{FAILED[tool]}: Failed to download audio file - {service.place} answered 404 Not Found.{URL_NOTE}"
        )
        assert await ask(client, service.offer("a.mp3", b""), tool) == f"{FAILED[tool]}: Downloaded file is empty"
        assert await ask(client, service.offer("watch", b"<html>", "text/html"), tool) == (
            f"{FAILED[tool]}: Invalid content type 'text/html'. Expected audio file."
        )
    assert {asked.path for asked in service.asked} == {"/files/none", "/files/a.mp3", "/files/watch"}


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_private_url_is_not_downloaded(service: Service, tool: str) -> None:
    async with asking(service) as client:
        told = await ask(client, service.offer("a.mp3", mp3()), tool)
    assert told.startswith(f"{FAILED[tool]}: Failed to download audio file - {service.place} leads to 127.0.0.1")
    assert told.endswith(URL_NOTE)
    assert service.asked == []


@pytest.mark.parametrize(
    ("tool", "failed"),
    [
        ("audio_transcription", "[ERROR]: Audio transcription failed: "),
        ("audio_question_answering", "[ERROR]: Audio question answering failed when calling OpenAI API: "),
    ],
)
async def test_a_call_that_fails_is_told(service: Service, folder: Path, tool: str, failed: str) -> None:
    service.stage(JSONResponse({"error": {"message": "bad"}}, 400), PlainTextResponse("<html>"), JSONResponse({}))
    async with asking(service, folder) as client:
        assert await ask(client, "a.wav", tool) == f"{failed}{service.place} answered 400 Bad Request: bad{NOTE}"
        assert await ask(client, "a.wav", tool) == f"{failed}it is not JSON ('<html>'){NOTE}"
        assert (await ask(client, "a.wav", tool)).startswith(failed)
        service.answer = ""
        assert await ask(client, "a.wav", tool) == f"{failed}Received empty response from API{NOTE}"
    async with asking(service, folder, api_key="") as client:
        assert await ask(client, "a.wav", tool) == (
            f"{failed}OPENAI_API_KEY is not set (option 'api_key' of this server){NOTE}"
        )


async def test_the_open_model_transcribes_under_its_own_name(service: Service, folder: Path) -> None:
    service.answer = "good evening"
    async with asking_os(service, folder) as client:
        assert await ask(client, "a.wav") == "good evening"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.form == {"model": "some-whisper", "file": ("audio.wav", "audio/wav", wav(1.5))}


async def test_the_open_model_is_not_given_a_page(service: Service) -> None:
    async with asking_os(service, web={"allow_private": [service.place]}) as client:
        told = await ask(client, service.offer("watch", b"<html>", "text/html; charset=utf-8"))
    assert told == "[ERROR]: Audio transcription failed: Invalid content type 'text/html'. Expected audio file."


@pytest.mark.parametrize(("option", "variable"), [("base_url", "WHISPER_BASE_URL"), ("model", "WHISPER_MODEL_NAME")])
async def test_what_the_open_model_lacks_is_named(service: Service, folder: Path, option: str, variable: str) -> None:
    async with asking_os(service, folder, **{option: ""}) as client:
        told = await ask(client, "a.wav")
    assert told == (
        f"[ERROR]: Audio transcription failed: {variable} is not set (option '{option}' of this server){NOTE}"
    )


async def test_an_open_model_may_need_no_key(service: Service, folder: Path) -> None:
    async with asking_os(service, folder, api_key="") as client:
        assert await ask(client, "a.wav") == "a red square"
    assert "authorization" not in service.asked[0].headers
