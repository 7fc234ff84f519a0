"""The page in a headless Chromium, at the width of a phone and of a desktop, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from synther_replay.report import report

pytest.importorskip("plotly")
pytestmark = pytest.mark.slow
PHONE, DESKTOP = {"width": 375, "height": 812}, {"width": 1280, "height": 900}
LONG = "a name without any space that is much longer than a phone is wide_" * 3
EVIL = "<img src=x onerror=document.title='owned'><b>bold</b>"


@pytest.fixture(scope="module")
def pages(rows: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: one with all sections, one with hundreds of columns, one of constants, one with odd names."""

    def step(observations: Any, actions: Any) -> tuple[Any, Any]:
        return 0.9 * observations, actions[:, 0]

    real, synthetic, held_out = rows(600, 0), rows(600, 1, shift=1), rows(600, 2)
    critics = {"value": lambda s: s.sum(1), "q": lambda s, a: s.sum(1) + a.sum(1)}
    wide = torch.randn(2, 200, 400, generator=torch.Generator().manual_seed(0))
    names = [LONG, EVIL, "</script><script>document.title='owned'</script>", "d"]
    made = {
        "full": report(real, synthetic, held_out=held_out, env=step, settings={"Fit": {"seconds": 3}}, **critics),
        "wide": report(*wide),
        "constant": report(torch.ones(30, 3), torch.ones(30, 3)),
        "names": report(real, synthetic, names=names, title=LONG, settings={LONG: {EVIL: LONG}}),
    }
    folder = tmp_path_factory.mktemp("pages")
    return {name: page.save(folder / f"{name}.html") for name, page in made.items()}


@contextmanager
def shown(browser: Any, path: Path, size: dict[str, int], scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """Open a page; yields it with the list of its errors."""
    is_phone = size is PHONE
    context = browser.new_context(viewport=size, color_scheme=scheme, is_mobile=is_phone, has_touch=is_phone)
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.locator("#chart-column[role=img]").wait_for(state="attached")
    try:
        yield page, errors
    finally:
        context.close()


def draw_all(page: Any) -> None:
    """Scroll to every chart: each is drawn when it comes into view."""
    for place in page.locator(".chart").all():
        place.scroll_into_view_if_needed()
        page.locator(f"#{place.get_attribute('id')}[data-drawn]").wait_for()


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize(
    ("name", "scheme"),
    [("full", "light"), ("full", "dark"), ("wide", "light"), ("constant", "light"), ("names", "light")],
)
def test_all_charts_are_drawn_without_errors_or_overflow(browser, pages, name, size, scheme) -> None:
    with shown(browser, pages[name], size, scheme) as (page, errors):
        draw_all(page)
        for details in page.locator("details").all():
            details.evaluate("part => { part.open = true; }")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate("document.title") != "owned"
        assert errors == []


def test_a_name_is_text_in_charts_too(browser, pages) -> None:
    with shown(browser, pages["names"], DESKTOP) as (page, errors):
        page.locator("#pick").select_option(label=EVIL)
        page.locator("#chart-column[data-drawn]").wait_for()
        assert "<img" in page.locator("#chart-column .xtitle").text_content()
        assert page.locator("#chart-column img[src=x]").count() == 0
        assert errors == []


def test_a_column_is_chosen_by_card_list_table_and_buttons(browser, pages) -> None:
    with shown(browser, pages["full"], DESKTOP) as (page, errors):
        pick, axis = page.locator("#pick"), page.locator("#chart-column .xtitle")
        page.locator(".card").nth(1).click()
        page.locator("#chart-column[data-drawn]").wait_for()
        second = page.locator(".card strong").nth(1).text_content()
        assert axis.text_content() == second
        assert page.locator(".card[aria-pressed=true] strong").text_content() == second
        page.locator("#next").click()
        page.locator("#previous").click()
        page.locator("#previous").click()
        assert axis.text_content() == page.locator(".card strong").nth(0).text_content()
        pick.select_option(label="reward")
        page.locator("#chart-column .bars").first.wait_for(state="attached")  # few values: bars, not bins
        page.locator("summary", has_text="All").click()
        page.locator("#find").fill("TERMIN")
        assert page.locator("table.all tbody tr:visible").count() == 1
        page.locator("table.all button:visible").click()
        assert "terminated" in page.locator("#reason").text_content()
        assert errors == []


def test_charts_follow_a_change_of_the_colour_scheme(browser, pages) -> None:
    with shown(browser, pages["full"], DESKTOP) as (page, errors):
        page.locator("#chart-column").scroll_into_view_if_needed()
        page.locator("#chart-column[data-drawn]").wait_for()
        colour = "getComputedStyle(document.querySelector('#chart-column .xtitle')).fill"
        before = page.evaluate(colour)
        page.emulate_media(color_scheme="dark")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # drawn in the next frame
        assert page.evaluate(colour) != before
        assert errors == []


def test_the_frame_of_a_notebook_shows_the_page(browser, rows, tmp_path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><body>{report(rows(200, 0), rows(200, 1))._repr_html_()}</body>")
    page = browser.new_page(viewport=DESKTOP)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(notebook.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#chart-column").scroll_into_view_if_needed()
    frame.locator("#chart-column[data-drawn]").wait_for()
    assert errors == []
    page.close()


def test_the_verdict_is_there_without_scripts(browser, pages) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["full"].as_uri())
    assert "Failed" in page.locator("#verdict").text_content()
    assert page.locator(".card svg").count() > 0
    context.close()
