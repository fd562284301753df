"""The page in a browser: the engine at work, as its statistics say, on wide and narrow screens."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.serve.page.conftest import OpenPage
from tests.serve.page.loaded import LoadedEngine
from tests.serve.scripted import ScriptedEngine


def colours(page: Page, count: int) -> list[str]:
    """Of the first cells of the map, read off its pixels."""
    cells: list[str] = page.evaluate(
        """(count) => {
            const canvas = document.querySelector("#pools canvas");
            const pitch = 16 * devicePixelRatio;
            const columns = Math.floor(canvas.width / pitch);
            const context = canvas.getContext("2d");
            return Array.from({length: count}, (_, at) => {
                const [x, y] = [(at % columns) * pitch + 6, Math.floor(at / columns) * pitch + 6];
                return context.getImageData(x, y, 1, 1).data.join(",");
            });
        }""",
        count,
    )
    return cells


def test_the_map_shows_who_holds_what(open_page: OpenPage) -> None:
    page = open_page(LoadedEngine())
    canvas = page.locator("#pools canvas")
    expect(canvas).to_have_attribute("aria-label", "40 blocks: 7 held, 2 of them shared, 2 cached, 31 free")
    cells = colours(page, 12)
    shared, first, second, free, cached = cells[0], cells[2], cells[4], cells[7], cells[8]
    assert len({shared, first, second, free, cached}) == 5
    assert cells == [shared, shared, first, first, second, second, second, free, cached, cached, free, free]
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    expect(page.locator("#kv-hover")).to_have_text("Block 0: shared by aa1111, aa1111")
    expect(page.locator("#kv-text")).to_have_text("18 % held · 2 cached · 75 % hits")


def test_the_step_the_batch_and_the_requests(open_page: OpenPage) -> None:
    page = open_page(LoadedEngine())
    expect(page.locator("#step")).to_have_text("prefill")
    expect(page.locator("#step + span")).to_have_text("48 tok in 12 ms")
    expect(page.locator("#batch")).to_have_text("2 / 8")
    expect(page.locator("#slots")).to_have_attribute("aria-label", "Batch: 2 of 8 places taken")
    assert page.locator("#slots i").count() == 8 and page.locator("#slots i[style*=hsl]").count() == 2
    rows = page.locator("#requests tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["aa1111", "running", "interactive", "70", "5"],
        ["aa1111·1", "running", "interactive", "70", "6"],
        ["bb2222", "waiting", "batch", "40.0 k", "0"],
    ]


def test_latencies_and_totals_are_those_of_the_answers(open_page: OpenPage) -> None:
    engine = ScriptedEngine()
    page = open_page(engine)
    expect(page.locator("#ttft-text")).to_have_text("none yet")
    page.get_by_label("Message", exact=True).fill("Hi")
    page.keyboard.press("Enter")
    expect(page.locator("#ttft")).to_have_attribute("aria-label", re.compile("^1 in all, half at most .+s, 95 %"))
    assert "p50" in (page.locator("#tpot-text").text_content() or "")
    expect(page.locator("#totals")).to_contain_text("answered")
    assert page.locator("#totals div", has_text="answered").locator("dd").text_content() == "1"


@pytest.mark.parametrize("width", [320, 390, 700])
def test_narrow_screens_have_one_view_at_a_time_and_never_scroll_sideways(open_page: OpenPage, width: int) -> None:
    page = open_page(LoadedEngine(max_len=4096), viewport={"width": width, "height": 640})
    page.get_by_label("Message", exact=True).fill("A" * 300)
    page.keyboard.press("Enter")
    page.wait_for_selector(".message .facts")
    page.get_by_text("Settings").click()
    wide = "Math.max(...[document.documentElement, ...document.querySelectorAll('main, main *')].map((e) => {\
        const r = e.getBoundingClientRect(); return r.width ? r.right : 0 }))"
    assert page.evaluate("document.documentElement.scrollWidth") <= width and page.evaluate(wide) <= width
    expect(page.locator("#engine")).to_be_hidden()
    page.get_by_role("button", name="Engine").click()
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.locator("#requests")).to_be_visible()
    expect(page.locator("#pools canvas")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width and page.evaluate(wide) <= width


def test_it_is_dark_for_who_wants_it_dark(open_page: OpenPage) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    engine = LoadedEngine()
    light, dark = (open_page(engine, color_scheme=scheme).evaluate(ground) for scheme in ("light", "dark"))
    assert sum(map(int, light[4:-1].split(","))) > 600 and sum(map(int, dark[4:-1].split(","))) < 120


def test_everything_can_be_reached_and_is_named(open_page: OpenPage) -> None:
    page = open_page(LoadedEngine())
    page.get_by_text("Settings").click()
    nameless = page.evaluate("""() => [...document.querySelectorAll("input, select, textarea, button, [role=img]")]
        .filter((e) => !(e.labels?.length || e.ariaLabel || e.getAttribute("aria-label") || e.textContent.trim()))
        .map((e) => e.outerHTML)""")
    assert nameless == []
    reached = set()
    page.get_by_label("Message", exact=True).focus()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.id"))
    assert reached >= {"send", "new-chat", "system", "temperature", "top_p", "min_p", "seed", "latency", "tint"}
