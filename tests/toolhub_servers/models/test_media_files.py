"""Which files and URLs a model can have looked at or listened to, and what it is told about the rest."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import RedirectResponse
from toolhub_servers.models import media as _media
from toolhub_servers.models.media import (
    AUDIO,
    MIB,
    VISION,
    MediaError,
    MediaReader,
    MediaSettings,
    SandboxFile,
    UnusableMedia,
    is_url,
)
from toolhub_servers.models.media_types import Accepted
from toolhub_servers.serving.local_files import ReadableFolders
from toolhub_servers.serving.server import ServerContext
from toolhub_servers.web import guard
from toolhub_servers.web.errors import BadStatus, Forbidden

from tests.toolhub_servers.models.media_standins import PATIENCE_S, Service, jpeg, mp3, png, wav
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio

SMALL = Accepted("image or video", "image/jpeg", {"image": 1000, "video": 2000})


@pytest.fixture
async def lobby() -> AsyncIterator[ServerContext]:
    async with open_shared_resources() as resources:
        with anyio.fail_after(PATIENCE_S):
            yield ServerContext(BuiltinContext("task", resources=resources))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.png").write_bytes(png())
    folder = tmp_path / "inputs"
    folder.mkdir()
    (folder / "a.png").write_bytes(png())
    return folder


def reading(lobby: ServerContext, accepted: Accepted = VISION, **settings: Any) -> MediaReader:
    return MediaReader(lobby, MediaSettings.model_validate(settings), accepted)


async def refusal(reader: MediaReader, path: str | Path) -> str:
    with pytest.raises(MediaError) as refused:
        await reader.read(str(path))
    return str(refused.value)


async def test_a_file_below_a_folder_is_read(lobby: ServerContext, folder: Path) -> None:
    reader = reading(lobby, local_dirs=[str(folder)])
    for path in (str(folder / "a.png"), "a.png", f"{folder}/../inputs/a.png"):
        media = await reader.read(path)
        assert (media.data, media.mime) == (png(), "image/png")


async def test_the_content_says_what_a_file_is_and_not_its_name(lobby: ServerContext, folder: Path) -> None:
    (folder / "photo.png").write_bytes(jpeg())
    assert (await reading(lobby, local_dirs=[str(folder)]).read("photo.png")).mime == "image/jpeg"


async def test_the_name_says_what_the_content_does_not(lobby: ServerContext, folder: Path) -> None:
    reader = reading(lobby, local_dirs=[str(folder)])
    for name, mime in {"x.webm": "video/webm", "x.GIF": "image/gif", "x.txt": "image/jpeg", "x": "image/jpeg"}.items():
        (folder / name).write_bytes(b"something else")
        assert (await reader.read(name)).mime == mime


@pytest.mark.parametrize("path", ["../outside.png", "link.png", "/etc/passwd", "/etc/no-such-file"])
async def test_no_path_leads_out_of_the_folders(lobby: ServerContext, folder: Path, path: str) -> None:
    (folder / "link.png").symlink_to("../outside.png")
    told = await refusal(reading(lobby, local_dirs=[str(folder)]), folder / path)
    assert told.startswith(f"Permission denied when reading file: {folder / path}\nNote: it is outside the directories")


async def test_without_folders_no_file_is_read_and_the_option_is_named(lobby: ServerContext, folder: Path) -> None:
    told = await refusal(reading(lobby), folder / "a.png")
    assert told.startswith(f"Permission denied when reading file: {folder / 'a.png'}\n") and "'local_dirs'" in told


async def test_a_missing_file_is_told(lobby: ServerContext, folder: Path) -> None:
    missing = folder / "b.png"
    assert await refusal(reading(lobby, local_dirs=[str(folder)]), missing) == f"File not found: {missing}"


@pytest.mark.parametrize("text", ["example.org/a.png", "ftp://example.org/a.png", "a-picture.png", "", "a\0b"])
async def test_what_looks_like_no_path_is_told_to_be_no_url(lobby: ServerContext, folder: Path, text: str) -> None:
    told = await refusal(reading(lobby, local_dirs=[str(folder)]), f"no-{text}")
    assert told == "Invalid URL format. URLs must start with http:// or https://"


async def test_only_regular_files_are_read_and_nothing_else_is_waited_for(lobby: ServerContext, folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    reader = reading(lobby, local_dirs=[str(folder)])
    for path in (folder / "pipe.png", folder):
        assert await refusal(reader, path) == f"Path is not a file: {path}"


async def test_a_file_that_may_not_be_read_is_told(
    lobby: ServerContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's refusal, staged: root is refused nothing."""

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ReadableFolders, "open", refuse)
    told = await refusal(reading(lobby, local_dirs=[str(folder)]), "a.png")
    assert told == "Permission denied when reading file: a.png"


async def test_an_empty_file_is_told(lobby: ServerContext, folder: Path) -> None:
    (folder / "empty.png").touch()
    assert await refusal(reading(lobby, local_dirs=[str(folder)]), "empty.png") == "File is empty"


@pytest.mark.parametrize(
    ("name", "size", "told"),
    [
        ("a.png", 20 * MIB + 1, "File size (20.00MB) exceeds maximum allowed size (20.0MB) for image"),
        ("a.mp4", 61 * MIB + MIB // 2, "File size (61.50MB) exceeds maximum allowed size (50.0MB) for video"),
    ],
)
async def test_a_file_that_is_too_big_is_told_and_not_read(
    lobby: ServerContext, folder: Path, name: str, size: int, told: str
) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(size)
    assert await refusal(reading(lobby, local_dirs=[str(folder)]), name) == told


class Growing(io.FileIO):
    """A file to which something is added before each piece of it but the first."""

    def read(self, size: int | None = -1, /) -> Any:
        if self.tell():
            with Path(str(self.name)).open("ab") as file:
                file.write(bytes(300))
        return super().read(size)


async def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(
    lobby: ServerContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadableFolders, "open", lambda *_: Growing(str(folder / "a.png")))
    told = await refusal(reading(lobby, SMALL, local_dirs=[str(folder)]), "a.png")
    assert told.startswith("File size ") and told.endswith(" for image")
    assert (folder / "a.png").stat().st_size < 2000


async def test_a_file_that_cannot_be_read_in_time_is_an_error_and_blocks_nothing(
    lobby: ServerContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(ReadableFolders, "open", lambda *_: released.wait(PATIENCE_S))
    monkeypatch.setattr(_media, "READ_TIMEOUT", 0.05)
    try:
        with pytest.raises(OSError, match=r"reading a\.png took more than 0\.05 seconds"):
            await reading(lobby, local_dirs=[str(folder)]).read("a.png")
    finally:
        released.set()


@pytest.mark.parametrize("path", ["/home/user/a.png", "home/user/a.png", "/data/home/user"])
async def test_a_path_in_a_sandbox_is_recognised(lobby: ServerContext, folder: Path, path: str) -> None:
    cases: list[dict[str, Any]] = [{}, {"local_dirs": [str(folder)]}]
    for settings in cases:
        with pytest.raises(SandboxFile):
            await reading(lobby, **settings).read(path)


async def test_a_folder_of_the_host_may_be_called_like_that_of_a_sandbox(lobby: ServerContext, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "user"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(png())
    assert (await reading(lobby, local_dirs=[str(folder)]).read(str(folder / "a.png"))).data == png()


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere' is not a directory"):
        MediaSettings(local_dirs=[str(tmp_path / "nowhere")])


async def test_a_url_is_read_by_its_content(lobby: ServerContext, service: Service) -> None:
    reader = reading(lobby, web={"allow_private": [service.place]})
    media = await reader.read(service.offer("a.gif", png(), "text/html"))
    assert (media.data, media.mime) == (png(), "image/png")


@pytest.mark.parametrize(
    ("name", "content_type", "mime"),
    [
        ("a.gif?size=2", "application/octet-stream", "image/gif"),
        ("a", "video/mp4", "video/mp4"),
        ("a", "application/octet-stream", "image/jpeg"),
    ],
)
async def test_a_url_whose_content_says_nothing_is_what_its_name_or_its_host_says(
    lobby: ServerContext, service: Service, name: str, content_type: str, mime: str
) -> None:
    service.offer(name.partition("?")[0], b"something", content_type)
    media = await reading(lobby, web={"allow_private": [service.place]}).read(f"{service.url}/files/{name}")
    assert media.mime == mime


async def test_a_page_is_no_image_and_an_image_no_recording(lobby: ServerContext, service: Service) -> None:
    web = {"allow_private": [service.place]}
    page = service.offer("watch.mp4", b"<!doctype html>", "text/html; charset=utf-8")
    assert await refusal(reading(lobby, web=web), page) == (
        "Invalid content type 'text/html'. Expected image or video file."
    )
    picture = service.offer("a.mp3", png(), "audio/mpeg")
    assert await refusal(reading(lobby, AUDIO, web=web), picture) == (
        "Invalid content type 'image/png'. Expected audio file."
    )


@pytest.mark.parametrize(("content", "mime"), [(wav(0.1), "audio/wav"), (mp3(2), "audio/mpeg")])
async def test_a_recording_is_taken_whatever_its_host_calls_it(
    lobby: ServerContext, service: Service, content: bytes, mime: str
) -> None:
    url = service.offer("sound", content, "application/x-unheard-of")
    assert (await reading(lobby, AUDIO, web={"allow_private": [service.place]}).read(url)).mime == mime


async def test_an_empty_download_is_told(lobby: ServerContext, service: Service) -> None:
    reader = reading(lobby, web={"allow_private": [service.place]})
    assert await refusal(reader, service.offer("a.png", b"")) == "Downloaded file is empty"


@pytest.mark.parametrize(("size", "kind"), [(1500, "image"), (5000, "image")])
async def test_a_download_that_is_too_big_is_told(lobby: ServerContext, service: Service, size: int, kind: str) -> None:
    reader = reading(lobby, SMALL, web={"allow_private": [service.place]})
    with pytest.raises(
        UnusableMedia, match=rf"File size \(0\.00MB\) exceeds maximum allowed size \(0\.0MB\) for {kind}"
    ):
        await reader.read(service.offer("a.png", png() + bytes(size)))


async def test_a_status_of_a_download_is_an_error(lobby: ServerContext, service: Service) -> None:
    with pytest.raises(BadStatus, match="404 Not Found"):
        await reading(lobby, web={"allow_private": [service.place]}).read(f"{service.url}/files/none.png")


async def test_a_private_address_is_not_read(lobby: ServerContext, service: Service) -> None:
    with pytest.raises(Forbidden, match="not public"):
        await reading(lobby).read(service.offer("a.png", png()))
    assert service.asked == []


async def test_a_redirect_into_the_private_network_is_not_followed(lobby: ServerContext, service: Service) -> None:
    port = service.place.partition(":")[2]
    service.files["a.png"] = RedirectResponse(f"http://localhost:{port}/files/b.png")
    service.offer("b.png", png())
    with pytest.raises(Forbidden, match="not public"):
        await reading(lobby, web={"allow_private": [service.place]}).read(f"{service.url}/files/a.png")
    assert [asked.path for asked in service.asked] == ["/files/a.png"]


async def test_a_url_for_somebody_else_is_judged_before_it_is_passed_on(lobby: ServerContext, service: Service) -> None:
    reader = reading(lobby)
    for url in (service.url, "http://169.254.169.254/latest", "https://[::1]/a.png", "http://localhost/a.png"):
        with pytest.raises(Forbidden, match="not public"):
            await reader.check_public(url)
    await reader.check_public("https://93.184.216.34/a.png")
    await reading(lobby, web={"allow_private": [service.place]}).check_public(service.url)
    assert service.asked == []


@pytest.mark.parametrize("addresses", [["93.184.216.34", "10.0.0.1"], ["::1", "93.184.216.34"], ["192.168.0.1"]])
async def test_a_name_with_a_private_address_among_others_is_not_passed_on(
    lobby: ServerContext, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    """Whoever fetches the URL may take any of them."""

    async def resolve(*_: Any) -> list[Any]:
        return [ip_address(address) for address in addresses]

    monkeypatch.setattr(guard, "_resolve", resolve)
    with pytest.raises(Forbidden, match=r"^mixed.example:443 leads to .*, which is not public"):
        await reading(lobby).check_public("https://mixed.example/a.png")
    await reading(lobby, web={"allow_private": ["mixed.example:443"]}).check_public("https://mixed.example/a.png")


async def test_a_name_that_is_not_known_here_is_left_to_whoever_fetches_it(
    lobby: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(guard, "_resolve", unknown)
    await reading(lobby).check_public("https://only-known-there.example/a.png")


async def test_a_look_up_that_hangs_holds_up_nobody(lobby: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_resolve", lambda *_: anyio.sleep_forever())
    monkeypatch.setattr(guard, "LOOK_UP_S", 0.05)
    await reading(lobby).check_public("https://slow.example/a.png")


def test_an_address_of_the_web_is_recognised_whatever_its_case() -> None:
    told = [is_url(text) for text in ("http://a", "HTTPS://a", "httpx://a", "/http://a", "")]
    assert told == [True, True, False, False, False]
