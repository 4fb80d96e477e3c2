"""Reading pages ourselves: every kind of page as text, whatever it says of itself and however large it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from toolhub_servers.scrape.model import Page, PageUnreadable
from toolhub_servers.scrape.pages import Pages
from toolhub_servers.web.errors import BadStatus, Forbidden, Unreachable, WebTimeout
from website.pages import CHINESE, JAPANESE
from website.site import Site

pytestmark = pytest.mark.anyio

Open = Callable[..., Awaitable[Pages]]
Read = Callable[..., Awaitable[Page]]


@pytest.fixture
def read(site: Site, opened: Open) -> Read:
    """Read a path of the website by the direct reader."""

    async def read_(path: str, **options: object) -> Page:
        with anyio.fail_after(30):
            return await (await opened(readers=["direct"], **options)).read(site.url + path)

    return read_


async def test_html_becomes_the_main_text_as_markdown(read: Read, site: Site) -> None:
    page = await read("/article")
    assert (page.kind, page.title, page.url) == ("html", "The harbour of Emden", f"{site.url}/article")
    assert "# The harbour of Emden" in page.text
    assert "80,000 tonnes" in page.text and "[the pilots]" in page.text
    assert "| Third | 11.5 |" in page.text
    assert "color: red" not in page.text and "tracked" not in page.text and "Copyright" not in page.text
    assert not page.is_cut and page.note == ""


async def test_a_page_without_a_main_text_is_given_whole(read: Read) -> None:
    page = await read("/listing")
    assert "file0.txt" in page.text and "file39.txt" in page.text


async def test_html_that_calls_itself_text_is_still_read_as_html(read: Read) -> None:
    assert (await read("/article.txt")).kind == "html"


@pytest.mark.parametrize("path", ["/report.pdf", "/report"])
async def test_a_pdf_becomes_its_text_whatever_it_is_called(read: Read, path: str) -> None:
    page = await read(path)
    assert page.kind == "document"
    assert "Annual report" in page.text and "The turnover was 17 million." in page.text
    assert "%PDF" not in page.text


async def test_a_word_file_becomes_markdown(read: Read) -> None:
    page = await read("/letter.docx")
    assert page.text == "# Dear reader\n\nThe pier is closed."


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/notes.txt", "first line\nsecond line\n"),
        ("/data.json", '{"tide": [1, 2, 3], "name": "Müller"}'),
        ("/code.py", "def tide():\n    return 14\n"),
    ],
)
async def test_text_stays_as_it_is(read: Read, path: str, text: str) -> None:
    page = await read(path)
    assert (page.kind, page.text) == ("text", text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/charset/gb2312-as-latin-1", CHINESE),
        ("/charset/gb2312-by-meta", CHINESE),
        ("/charset/utf-8-unsaid", CHINESE),
        ("/charset/utf-8-no-type", CHINESE),
        ("/charset/shift-jis", JAPANESE),
        ("/charset/unknown", CHINESE),
        ("/charset/latin-1", "Ein schöner Tag für Müller."),
    ],
)
async def test_the_right_character_set_is_found(read: Read, path: str, text: str) -> None:
    assert text in (await read(path)).text


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/script.html", "the page has no text; it may need JavaScript"),
        ("/blank.html", "the page has no text"),
        ("/empty", "No content returned from URL"),
        ("/image.png", r"it has no text to read: its content type is image/png \(208 bytes\)"),
        ("/program.bin", "it has no text to read: its content type is application/octet-stream"),
        ("/broken.pdf", "the document could not be converted"),
    ],
)
async def test_what_has_no_text_is_told_with_the_reason(read: Read, path: str, reason: str) -> None:
    with pytest.raises(PageUnreadable, match=reason):
        await read(path)


async def test_a_long_text_is_cut_and_says_so(read: Read) -> None:
    page = await read("/one-line", max_chars=1000)
    assert page.is_cut and len(page.text) == 1000
    assert page.note == "Only the first 1000 characters are here; there was more."
    assert page.noted_text.endswith(f"\n\n[{page.note}]")


async def test_an_endless_body_is_read_up_to_the_limit_and_says_so(read: Read, site: Site) -> None:
    web = {"allow_private": [site.authority], "max_bytes": 1_000_000}
    page = await read("/huge", web=web)
    assert page.is_cut and len(page.text) == 1_000_000
    assert page.note == "Only its first 1000000 bytes were read; there was more."
    assert site.sent_bytes < 100 << 20


async def test_a_compression_bomb_costs_no_more_than_its_limit(read: Read) -> None:
    page = await read("/bomb", max_chars=500)
    assert page.is_cut and len(page.text) == 500
    assert page.note.startswith(f"Only its first {20 << 20} bytes were read; there was more.")


@pytest.mark.parametrize("path", ["/busy", "/flaky", "/chain/4"])
async def test_passing_trouble_is_overcome(read: Read, path: str) -> None:
    assert "80,000 tonnes" in (await read(path)).text


async def test_redirects_are_told_in_the_url(read: Read, site: Site) -> None:
    assert (await read("/chain/2")).url == f"{site.url}/article"


@pytest.mark.parametrize("code", [400, 403, 404, 410])
async def test_a_bad_status_is_an_error_with_that_status(read: Read, code: int) -> None:
    with pytest.raises(BadStatus) as caught:
        await read(f"/status/{code}")
    assert caught.value.status == code


async def test_a_redirect_loop_ends(read: Read) -> None:
    with pytest.raises(Unreachable, match="more than 5 redirects"):
        await read("/loop")


@pytest.mark.parametrize("path", ["/to-private", "/to-loopback"])
async def test_a_redirect_into_the_private_network_is_not_followed(read: Read, site: Site, path: str) -> None:
    with pytest.raises(Forbidden):
        await read(path)
    assert len(site.seen) == 1


async def test_a_slow_page_is_given_up_in_time(read: Read) -> None:
    with pytest.raises(WebTimeout):
        await read("/slow", total_s=0.2)


async def test_headers_of_a_caller_are_sent_but_not_those_that_steer_the_message(opened: Open, site: Site) -> None:
    pages = await opened(readers=["direct"])
    sent = {"X-Flavour": "plain", "Host": "internal.example", "Content-Length": "99", "Accept": "text/csv"}
    text = (await pages.read(f"{site.url}/echo", sent)).text
    assert '"x-flavour":"plain"' in text and '"accept":"text/csv"' in text
    assert f'"host":"{site.authority}"' in text and "99" not in text.replace(site.authority, "")


@pytest.mark.parametrize("headers", [{"X-A": "1\r\nHost: x"}, {"X A": "1"}, {"": "1"}, {"X:": "1"}])
async def test_headers_that_are_none_are_refused(opened: Open, site: Site, headers: dict[str, str]) -> None:
    with pytest.raises(PageUnreadable, match="custom_headers"):
        await (await opened(readers=["direct"])).read(f"{site.url}/echo", headers)
    assert site.seen == []


async def test_the_name_that_an_operator_chose_is_given(opened: Open, site: Site) -> None:
    pages = await opened(readers=["direct"], user_agent="Mozilla/5.0 (test)")
    assert "Mozilla/5.0 (test)" in (await pages.read(f"{site.url}/echo")).text
