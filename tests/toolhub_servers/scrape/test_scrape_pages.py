"""The order of the readers, what is shared, and what is never sent or paid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from toolhub_servers.browser import BrowserSettings
from toolhub_servers.scrape import pages as pages_module
from toolhub_servers.scrape.model import DATASET_REFUSAL, DatasetRefused, PageUnreadable
from toolhub_servers.scrape.pages import Pages, open_pages
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.web.errors import BadStatus, Forbidden, WebTimeout
from website import standins
from website.pages import ARTICLE, SCRIPTED
from website.site import Site

from toolhub.errors import MissingExtra
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

Open = Callable[..., Awaitable[Pages]]


class FakeBrowser:
    """Runs no script: it knows what comes of the website's."""

    def __init__(self, html: str = SCRIPTED.replace('"></div>', '">The tide is high at 14:05.</div>')) -> None:
        self.html = html
        self.rendered: list[str] = []

    async def render(self, url: str, *, timeout: float) -> str:
        self.rendered.append(url)
        return self.html


async def test_jina_is_asked_first_with_the_key_and_the_page_after_its_address(opened: Open, site: Site) -> None:
    page = await (await opened()).read(f"{site.url}/article?a=1")
    (seen,) = site.seen
    assert seen.target == f"/jina/{site.url}/article?a=1"
    assert seen.headers["authorization"] == f"Bearer {standins.JINA_KEY}"
    assert (page.kind, page.title) == ("jina", "Jina's page")
    assert page.text.endswith("Read by [Jina](https://jina.ai/) for you.")


async def test_headers_go_to_jina_but_never_take_the_place_of_our_key(opened: Open, site: Site) -> None:
    await (await opened()).read(f"{site.url}/article", {"X-Return-Format": "html", "authorization": "Bearer theirs"})
    headers = site.seen[0].headers
    assert headers["x-return-format"] == "html"
    assert headers["authorization"] == f"Bearer {standins.JINA_KEY}"


@pytest.mark.parametrize("prefix", ["https://r.jina.ai/", "own"])
async def test_an_address_of_jina_before_the_url_is_taken_off(opened: Open, site: Site, prefix: str) -> None:
    before = f"{site.jina_url}/" if prefix == "own" else prefix
    await (await opened()).read(f"{before}{site.url}/article")
    assert site.seen[0].target == f"/jina/{site.url}/article"


@pytest.mark.parametrize(
    "answer",
    [
        standins.out_of_balance(402),
        standins.out_of_balance(200),
        standins.status(200, " \n"),
        standins.status(422, "bad url"),
    ],
    ids=["out of balance", "out of balance with status 200", "empty", "refused"],
)
async def test_what_jina_has_not_is_read_directly(opened: Open, site: Site, answer: standins.Answer) -> None:
    site.jina.then(answer)
    page = await (await opened()).read(f"{site.url}/article")
    assert page.kind == "html" and "80,000 tonnes" in page.text
    assert [seen.target.startswith("/jina/") for seen in site.seen] == [True, False]


async def test_passing_trouble_at_jina_is_overcome(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(429, retry_after="0"), standins.status(500))
    assert (await (await opened()).read(f"{site.url}/article")).kind == "jina"
    assert len(site.seen) == 3


async def test_a_slow_jina_leaves_time_for_the_next_reader(opened: Open, site: Site) -> None:
    site.jina.then(standins.SLOW)
    with anyio.fail_after(20):
        page = await (await opened(reader_s=2)).read(f"{site.url}/article")
    assert page.kind == "html"
    assert len(site.asked("/jina/")) == 1


async def test_without_a_key_jina_is_not_asked(opened: Open, site: Site) -> None:
    page = await (await opened(jina_api_key="")).read(f"{site.url}/article")
    assert page.kind == "html"
    assert site.asked("/jina/") == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (standins.out_of_balance(402), "Insufficient balance"),
        (standins.out_of_balance(200), "Insufficient balance"),
        (standins.status(200, "\n"), "No content returned from Jina.ai API"),
    ],
)
async def test_a_failure_of_the_last_reader_is_what_is_raised(
    opened: Open, site: Site, answer: standins.Answer, reason: str
) -> None:
    site.jina.then(answer)
    with pytest.raises(PageUnreadable, match=reason):
        await (await opened(readers=["jina"])).read(f"{site.url}/article")


async def test_a_page_about_insufficient_balance_is_a_page(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(200, 'Title: x\n\n{"name": "InsufficientBalanceError"}'))
    assert (await (await opened()).read(f"{site.url}/article")).kind == "jina"


@pytest.mark.parametrize(
    "url",
    [
        "https://huggingface.co/datasets/gaia-benchmark/GAIA",
        "http://HuggingFace.co/spaces/x",
        "https://huggingface.co/%64atasets/x",
        "https://hf.co/datasets/x",
        "https://r.jina.ai/https://huggingface.co/datasets/x",
        "  https://huggingface.co//datasets/x",
    ],
)
async def test_a_dataset_is_refused_before_anything_is_sent_or_paid(opened: Open, site: Site, url: str) -> None:
    browser = FakeBrowser()
    with pytest.raises(DatasetRefused, match=DATASET_REFUSAL):
        await (await opened(renderer=browser)).read(url)
    assert site.seen == [] and browser.rendered == []


async def test_a_model_page_of_the_same_place_is_not_refused(opened: Open, site: Site) -> None:
    assert (await (await opened()).read("https://huggingface.co/Qwen/Qwen3-8B")).kind == "jina"


async def test_a_redirect_to_a_dataset_gives_no_text(opened: Open, site: Site) -> None:
    """Jina's stand-in says nothing of redirects; the direct reader sees where it ended."""
    url = f"{site.url}/to?url=/article%23huggingface.co/datasets/x"
    with pytest.raises(DatasetRefused):
        await (await opened(readers=["direct"])).read(url)


async def test_tasks_that_want_the_same_page_share_one_request(opened: Open, site: Site) -> None:
    pages = await opened()
    site.jina.then(standins.SLOW)
    texts: list[str] = []

    async def read() -> None:
        texts.append((await pages.read(f"{site.url}/article")).text)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(read)
            await anyio.to_thread.run_sync(site.wait_slow)
            site.release()
        await read()  # and later ones get what was kept
    assert len(texts) == 21 and len(set(texts)) == 1
    assert len(site.seen) == 1
    counted = pages.statistics()
    assert (counted["misses"], counted["joined"], counted["hits"], counted["read_by_jina"]) == (1, 19, 1, 1)


async def test_other_headers_make_another_page(opened: Open, site: Site) -> None:
    pages = await opened()
    await pages.read(f"{site.url}/article")
    await pages.read(f"{site.url}/article", {"Cookie": "a=1"})
    assert len(site.seen) == 2


async def test_a_failure_is_not_kept(opened: Open, site: Site) -> None:
    pages = await opened(readers=["direct"])
    for _ in range(2):
        with pytest.raises(BadStatus):
            await pages.read(f"{site.url}/status/404")
    assert len(site.seen) == 2


async def test_equal_settings_are_the_same_pages_and_secrets_stay_out_of_the_key(
    site: Site, resources: SharedResources
) -> None:
    one = PageSettings(jina_api_key="secret-1", jina_base_url=site.jina_url)
    other = PageSettings(jina_api_key="secret-2", jina_base_url=site.jina_url)
    assert await open_pages(resources, one) is await open_pages(resources, one)
    assert await open_pages(resources, one) is not await open_pages(resources, other)
    assert "secret" not in repr(resources) and "secret" not in repr(one)


async def test_everything_together_is_bounded_in_time(opened: Open, site: Site) -> None:
    site.jina.then(standins.SLOW)
    pages = await opened(total_s=0.3)
    with anyio.fail_after(30), pytest.raises(WebTimeout):
        await pages.read(f"{site.url}/slow")


async def test_a_page_that_shows_nothing_without_scripts_is_rendered(opened: Open, site: Site) -> None:
    browser = FakeBrowser()
    page = await (await opened(readers=["direct"], renderer=browser)).read(f"{site.url}/script.html")
    assert "The tide is high at 14:05." in page.text
    assert browser.rendered == [f"{site.url}/script.html"]


async def test_a_page_with_text_or_with_a_bad_status_is_not_rendered(opened: Open, site: Site) -> None:
    browser = FakeBrowser(ARTICLE)
    pages = await opened(readers=["direct"], renderer=browser)
    await pages.read(f"{site.url}/article")
    with pytest.raises(BadStatus):
        await pages.read(f"{site.url}/status/404")
    assert browser.rendered == []


async def test_a_browser_alone_renders_every_page(opened: Open, site: Site) -> None:
    browser = FakeBrowser(ARTICLE)
    page = await (await opened(readers=["browser"], renderer=browser)).read(f"{site.url}/article")
    assert "80,000 tonnes" in page.text and site.seen == []


async def test_the_browser_of_the_hub_is_used_where_it_is_a_reader(
    opened: Open, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[BrowserSettings] = []
    browser = FakeBrowser()

    async def open_renderer(_resources: SharedResources, settings: BrowserSettings) -> FakeBrowser:
        found.append(settings)
        return browser

    monkeypatch.setattr(pages_module, "open_renderer", open_renderer)
    pages = await opened(readers=["direct", "browser"], browser={"locale": "de-DE"})
    assert "The tide is high" in (await pages.read(f"{site.url}/script.html")).text
    assert found == [BrowserSettings(locale="de-DE", allow_private=[site.authority])]


async def test_a_browser_that_is_not_there_is_told(opened: Open, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_renderer(_resources: SharedResources, _settings: BrowserSettings) -> FakeBrowser:
        raise MissingExtra("browser", "the browser server")

    monkeypatch.setattr(pages_module, "open_renderer", open_renderer)
    with pytest.raises(PageUnreadable, match="there is no browser here: .*browser"):
        await (await opened(readers=["browser"])).read(f"{site.url}/article")


async def test_a_name_outside_ascii_is_no_address(opened: Open) -> None:
    assert (await (await opened()).read("http://münchen.example/0")).kind == "jina"


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:9/",
        "http://app.localhost/",
        "https://[::1]/",
        "http://2130706433/",
        "http://0x7f.1:8000/",
        "http://127.1",
        "https://r.jina.ai/http://192.168.0.1/admin",
    ],
)
async def test_no_reader_is_sent_to_a_private_address(opened: Open, site: Site, url: str) -> None:
    browser = FakeBrowser()
    with pytest.raises(Forbidden):
        await (await opened(renderer=browser)).read(url)
    assert site.seen == [] and browser.rendered == []


@pytest.mark.parametrize(
    "options",
    [{"jina_base_url": "r.jina.ai"}, {"readers": []}, {"readers": ["lynx"]}, {"colour": "red"}, {"total_s": 0}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        PageSettings.model_validate(options)
