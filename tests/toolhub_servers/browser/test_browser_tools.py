"""What a model does with pages that behave."""

from __future__ import annotations

import base64

import anyio
import pytest

from tests.toolhub_servers.browser.browser_site import ARTICLE, Website, answer
from tests.toolhub_servers.browser.browsing import Open

pytestmark = pytest.mark.anyio

PATIENCE = 30


async def test_navigating_shows_the_page_with_references(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            shown = await task.open("/")
            assert f"- URL: {task.site.url()}" in shown and "- Title: Home" in shown
            assert 'heading "Welcome"' in shown and "[ref=e" in shown


async def test_a_link_a_form_and_the_way_back(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/")
            assert "- Title: Article" in await task.click('link "The article"')
            assert "- Title: Home" in await task.call("navigate_back")
            query = await task.ref('textbox "Query"')
            found = await task.call("type", ref=query, text="needle & thread", submit=True)
            assert "You asked for needle & thread" in found


async def test_without_a_page_the_way_to_one_is_told(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            for tool in ("snapshot", "read", "navigate_back"):
                assert await task.call(tool) == "[ERROR]: no page is open; open one with browser_navigate"
            await task.call("tabs", action="new")
            assert await task.call("navigate_back") == "[ERROR]: there is no earlier page in this tab's history"


async def test_typing_replaces_and_slow_typing_presses_keys(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/")
            query = await task.ref('textbox "Query"')
            await task.call("type", ref=query, text="one")
            shown = await task.call("type", ref=query, text="two", slowly=True)
            assert f'textbox "Query" [active] [ref={query}]: two' in shown


async def test_clicking_hovering_and_keys_reach_the_page(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/clicks")
            assert 'button "clicked"' in await task.click('button "Press me"')
            assert 'button "touched"' in await task.call("hover", ref=await task.ref('button "Touch me"'))
            assert "- Title: key ArrowDown" in await task.call("press_key", key="ArrowDown")


async def test_an_option_is_chosen_by_its_text(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/")
            shown = await task.call("select_option", ref=await task.ref('combobox "Colour"'), values=["Green"])
            assert 'option "Green" [selected]' in shown


async def test_a_reference_that_is_none_is_told_at_once(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/")
            assert "take one from a snapshot" in await task.call("click", ref="#search")
            assert await task.call("click", ref="e999") == (
                "[ERROR]: the page has no element e999 any more: take a new browser_snapshot"
            )


async def test_an_element_that_is_covered_is_told_with_what_covers_it(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(action_s=0.5) as task:
            await task.open("/covered")
            told = await task.click('button "Under"')
            assert told.startswith("[ERROR]: ") and "intercepts pointer events" in told and "still open" in told


async def test_reading_gives_the_article_and_not_the_menu(browser: Open) -> None:
    pytest.importorskip("trafilatura", exc_type=ImportError)
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/article")
            text = await task.call("read")
            assert ARTICLE in text and "Menu" not in text


async def test_what_scripts_wrote_is_read(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/scripted")
            assert "Fetched by a script" in await task.call("wait_for", text="Fetched by a script")
            assert "Fetched by a script" in await task.call("read")


async def test_a_long_result_is_cut_and_can_be_continued(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(max_chars=1000) as task:
            assert "[Cut: characters 0 to 1000 of " in await task.open("/long")
            assert 'button "Button 0"' in await task.call("snapshot")
            later = await task.call("snapshot", start=1000)
            assert 'button "Button 0"' not in later and "[Cut: characters 1000 to 2000 of " in later


async def test_a_title_and_an_address_without_end_are_cut(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            shown = [await task.open("/wordy"), await task.call("snapshot"), await task.call("tabs", action="list")]
            shown.append(str((await task.client.call_tool("browser_take_screenshot", {})).content[0]))
            shown.append(await task.call("read"))
            assert "- Title: tttt" in shown[0] and "### Events" in shown[0] and all(len(text) < 5000 for text in shown)


async def test_without_snapshots_results_tell_only_where_the_page_is(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(snapshots="none") as task:
            assert await task.open("/") == f"### Page\n- URL: {task.site.url()}\n- Title: Home"


async def test_waiting_ends_with_the_text_or_with_the_time(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/late")
            assert "Arrived" in await task.call("wait_for", text="Arrived", textGone="Loading")
            assert "Arrived" in await task.call("wait_for", time=0.01)
            late = await task.call("wait_for", text="Never", time=0.1)
            assert late.startswith("[ERROR]: Timeout 100ms exceeded") and "still open" in late


async def test_tabs_are_listed_opened_selected_and_closed(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(max_tabs=2) as task:
            assert "No page is open" in await task.call("tabs", action="list")
            await task.open("/")
            assert "- Title: Article" in await task.call("tabs", action="new", url=task.site.url("/article"))
            assert await task.call("tabs", action="list") == (
                f"### Tabs\n- 0: [Home] ({task.site.url()})\n- 1: (current) [Article] ({task.site.url('/article')})"
            )
            assert "max_tabs" in await task.call("tabs", action="new")
            assert "- 0: (current) [Home]" in await task.call("tabs", action="select", index=0)
            assert "Article" not in await task.call("tabs", action="close", index=1)
            assert "there is no tab 7" in await task.call("tabs", action="select", index=7)


async def test_a_screenshot_is_an_image_of_bounded_size(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/tall")
            small, tall = await task.picture(), await task.picture(fullPage=True)
            assert (small.mime_type, tall.mime_type) == ("image/png", "image/png")
            assert size_of(small.data) == (1280, 720) and size_of(tall.data) == (1280, 6000)
            await task.open("/noise")
            noise = await task.picture()
            assert noise.mime_type == "image/jpeg" and len(base64.b64decode(noise.data)) <= 1 << 20


def size_of(picture: str) -> tuple[int, int]:
    """Width and height of a PNG, which stand in its header."""
    data = base64.b64decode(picture)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


async def test_a_status_that_is_an_error_is_told(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            assert "- HTTP status: 404 Not Found" in await task.open("/nowhere")


async def test_a_pdf_is_told_to_be_one(browser: Open, site: Website) -> None:
    site.pages["/paper.pdf"] = answer(b"%PDF-1.1\n", kind="application/pdf")
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            assert "This is a PDF, which the browser shows but cannot read" in await task.open("/paper.pdf")
            assert "shows no text" in await task.call("read")


async def test_a_host_that_is_none_is_told_so(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            told = await task.call("navigate", url="https://no-such-host.invalid")
            assert told.startswith("[ERROR]: ") and "(the host was not found, or did not answer)" in told


async def test_no_tool_runs_code_of_the_models(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            tools = (await task.client.list_tools()).tools
            assert len(tools) == 13 and all(tool.name.startswith("browser_") for tool in tools)
            assert not any("evaluate" in tool.name or "code" in tool.name for tool in tools)
