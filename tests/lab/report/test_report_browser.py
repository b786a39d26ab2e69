"""The page in a real browser: no complaints, nothing fetched, nothing cut off, figures that answer the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from ibpwf.lab.report import write_report
from ibpwf.lab.report.pdf import find_browser

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([finished], tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_it_fits_and_nothing_complains(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    boxes = browser.value(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height])"
    )
    assert len(boxes) == 8
    assert all(w > 200 and h > 100 for w, h in boxes)
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]


def test_no_text_of_a_figure_is_cut_off(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    outside = browser.value(
        "[...document.querySelectorAll('figure svg text')].filter(t => { const a = t.getBoundingClientRect(),"
        " b = t.ownerSVGElement.getBoundingClientRect();"
        " return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;"
        " }).map(t => t.textContent)"
    )
    assert outside == []


def test_text_can_be_read_on_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, 390)
    smallest = browser.value(
        "Math.min(...[...document.querySelectorAll('figure svg text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize) * (m => Math.hypot(m.a, m.b))(t.getScreenCTM())))"
    )
    assert smallest >= 9


def test_arrow_keys_read_a_figures_numbers(browser: Browser, page: Path) -> None:
    browser.open(page, 1440)
    browser.value("document.querySelector('figure svg').focus()")
    tip = "document.getElementById('tip')"
    browser.key("ArrowRight")
    first = browser.value(f"{tip}.textContent")
    assert first.startswith("task 0/1 after learning task 0/1: ")
    browser.key("ArrowDown")
    assert browser.value(f"{tip}.textContent").startswith("task 0/1 after learning task 2/3: ")
    browser.key("ArrowRight")
    assert browser.value(f"{tip}.textContent").startswith("task 2/3 after learning task 2/3: ")
    assert browser.value(f"{tip}.hidden") is False
    browser.key("Escape")
    assert browser.value(f"{tip}.hidden") is True


@pytest.mark.parametrize("width", [390, 1440])
def test_the_contents_stay_in_sight_and_lead_to_their_sections(browser: Browser, page: Path, width: int) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page, width)
        browser.call("Page.navigate", url=f"{page.resolve().as_uri()}#run1-factors")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    inside = "(b => b.top >= 0 && b.bottom <= innerHeight)"
    assert browser.value(f"scrollY > 1000 && {inside}(document.querySelector('.contents').getBoundingClientRect())")
    assert browser.value(f"{inside}(document.querySelector('#run1-factors-title').getBoundingClientRect())")
    below = "document.querySelector('.contents').getBoundingClientRect().bottom"
    if width == 390:
        assert browser.value(f"document.querySelector('#run1-factors-title').getBoundingClientRect().top >= {below}")


def test_a_figure_wider_than_a_phone_says_that_it_scrolls_and_the_keys_bring_its_marks_in_sight(
    browser: Browser, page: Path
) -> None:
    hint = "getComputedStyle(document.querySelector('#run1-scores .sideways')).display"
    browser.open(page, 1440)
    assert browser.value(hint) == "none"
    browser.open(page, 390)
    assert browser.value(hint) == "block"
    assert browser.value("(c => c.scrollWidth > c.clientWidth)(document.querySelector('#run1-scores .canvas'))")
    browser.value("document.querySelector('#run1-scores svg').focus()")
    for _ in range(25):
        browser.key("ArrowRight")
    assert browser.value("document.querySelector('#run1-scores .canvas').scrollLeft") > 0
    assert browser.value(
        "(b => b.left >= 0 && b.right <= innerWidth)(document.querySelector('.on').getBoundingClientRect())"
    )
