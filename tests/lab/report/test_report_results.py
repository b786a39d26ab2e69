"""The page of a folder of result files: up to date, always the same bytes, growing with the files, never broken."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from page_reader import Reader, drawings, tips
from test_report_reproduction import write

from ibpwf.lab.experiments.results_folder import digest, is_results_folder
from ibpwf.lab.report.page import make_page, write_report
from ibpwf.lab.report.pdf import find_browser

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def html() -> str:
    return make_page([RESULTS]).html


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Some of the result files, to add to and to damage."""
    out = tmp_path / "results"
    shutil.copytree(RESULTS / "compare-split-mnist", out / "compare-split-mnist")
    shutil.copy(RESULTS / "split-mnist-paper.json", out)
    return out


def add(folder: Path, name: str) -> None:
    made = write(folder.parent / "made", name)
    (folder / "reproduction").mkdir(exist_ok=True)
    shutil.move(made / "result.json", folder / "reproduction" / f"{name}.json")


def test_the_committed_page_is_made_from_the_committed_results() -> None:
    page = (RESULTS / "report.html").read_text(encoding="utf-8")
    found = re.search('<meta name="ibpwf-source" content="([0-9a-f]+)"', page)
    assert found is not None
    assert found[1] == digest(RESULTS), "docs/results has changed; run `make results`"


def test_the_page_has_every_number_of_the_files_under_five_megabytes_and_always_the_same(html: str) -> None:
    assert len(html.encode()) < 5_000_000
    assert make_page([RESULTS]).html == html
    reader = Reader(html)
    assert reader.faults == []
    result = json.loads((RESULTS / "compare-split-mnist" / "ewc.json").read_text())
    assert f"{result['accuracy']['task']['mean']:.2f} ± {result['accuracy']['task']['std']:.2f}" in reader.text
    assert result["command"] in reader.text
    ours = result["accuracy"]["class"]
    told = [tip for drawing in drawings(html) for tip in tips(drawing) if tip.startswith("ewc: ")]
    assert any(tip.startswith(f"ewc: {ours['mean']:.2f} ± {ours['std']:.2f} %; the paper ") for tip in told)


def test_a_new_file_is_on_the_next_page_and_changes_its_mark(copy: Path) -> None:
    assert is_results_folder(copy)
    before = make_page([copy])
    assert [one.about.name for one in before.experiments] == ["table1", "table3", "table4"]
    assert "figure-alpha" in Reader(before.html).text  # among those not measured yet
    mark = digest(copy)
    add(copy, "figure-alpha")
    after = make_page([copy])
    assert after.problems == []
    assert [one.about.name for one in after.experiments][-1] == "figure-alpha"
    assert "ibpwf reproduce figure-alpha" in Reader(after.html).text
    assert digest(copy) != mark


@pytest.mark.parametrize("text", ["", "{", "[]", '{"accuracy": 3, "command": "c"}', '{"accuracy": {}, "command": 1}'])
@pytest.mark.parametrize("place", ["compare-split-mnist/ewc.json", "split-mnist-paper.json"])
def test_a_cut_or_foreign_file_is_named_and_the_rest_is_shown(copy: Path, place: str, text: str) -> None:
    (copy / place).write_text(text)
    page = make_page([copy])
    if text != "[]":  # a list is no result at all, and passed over like other JSON
        assert any(place in problem for problem in page.problems)
    assert len(page.comparisons[0].rows) >= 20
    assert Reader(page.html).faults == []


def test_a_damaged_reproduction_is_named(copy: Path) -> None:
    add(copy, "figure-alpha")
    path = copy / "reproduction" / "figure-alpha.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "measured": {"panels": [3]}}))
    page = make_page([copy])
    assert "figure-alpha" in page.problems[0]
    assert "table1" in [one.about.name for one in page.experiments]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome on the PATH")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1440, True)])
def test_it_fits_a_phone_and_a_desk_and_answers_the_pointer(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    page = write_report([RESULTS], tmp_path / "report.html")
    browser.open(page, width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    boxes = browser.value(
        "[...document.querySelectorAll('figure svg')].filter(s => !s.closest('details:not([open])'))"
        ".map(s => s.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert len(boxes) >= 10
    assert all(w > 200 and h > 60 for w, h in boxes)
    outside = browser.value(
        "[...document.querySelectorAll('figure svg text')].filter(t => { const a = t.getBoundingClientRect(),"
        " b = t.ownerSVGElement.getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1"
        " || a.top < b.top - 1 || a.bottom > b.bottom + 1; }).map(t => t.textContent)"
    )
    assert outside == []
    browser.value("document.querySelector('#comparison1 svg').scrollIntoView({block: 'center'})")
    x, y = browser.value(
        "(b => [b.left + b.width / 2, b.top + b.height / 2])"
        "(document.querySelector('#comparison1 svg .mark').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert re.match(r"[\w-]+: [\d.]+ ± [\d.]+ %", browser.value("document.getElementById('tip').textContent"))
    assert browser.complaints() == []
    asked = [address for address in browser.requests() if not address.startswith("data:")]  # pictures are in the page
    assert asked == [page.resolve().as_uri()]
