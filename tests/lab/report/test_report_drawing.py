"""The parts of a chart: ticks are round and inside, scales are even, text survives, violins end where inputs do."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibpwf.lab.report import charts
from ibpwf.lab.report.charts import accuracy_map, color_range, expectation, outline
from ibpwf.lab.report.drawing import Chart, Drawing, clean, coordinate, log_ticks, short, tick_names, ticks


@given(st.floats(-1e9, 1e9, allow_nan=False), st.floats(1e-6, 1e9))
def test_ticks_are_few_even_and_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert len(found) <= 8
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= value <= low + span + slack for value in found)
    if span > 1e-9 * abs(low):
        gaps = {round((b - a) / span, 6) for a, b in itertools.pairwise(found)}
        assert max(gaps, default=0) - min(gaps, default=0) < 1e-3


@given(st.floats(-8, 8), st.floats(0.7, 9))
def test_log_ticks_are_inside(start: float, decades: float) -> None:
    low, high = 10**start, 10 ** (start + decades)
    assert all(low * 0.99 <= value <= high * 1.01 for value in log_ticks(low, high))


def test_a_chart_maps_its_corners() -> None:
    chart = Chart("t", (0, 10), (1, 100), [("line", "mean", "a key")], log_y=True)
    assert chart.x(0) == chart.left
    assert chart.x(10) == chart.right < chart.width
    assert chart.y(10) == pytest.approx((chart.y(1) + chart.y(100)) / 2)
    assert chart.y(1) == pytest.approx(chart.base)


def svg(drawing: Drawing) -> ET.Element:
    return ET.fromstring(drawing.__html__())


@given(st.text(max_size=50))
def test_any_text_survives_as_text(given_text: str) -> None:
    drawing = Drawing(given_text, 10, 10)
    drawing.label(0, 0, given_text)
    drawing.rect("", 0, 0, 1, 1, given_text or "tip")
    label, mark = svg(drawing)
    same = clean(given_text).replace("\r\n", "\n").replace("\r", "\n")
    assert (label.text or "") == same
    assert "".join(title.text or "" for title in mark) == (same or "tip")
    assert len(short(given_text, 9)) <= 9


def test_what_cannot_be_drawn_is_rejected() -> None:
    with pytest.raises(ValueError, match="nan"):
        coordinate(math.nan)


def test_ticks_are_names_or_what_tells_them_apart_or_numbers() -> None:
    permutations = [f"permutation-{i}" for i in range(3)]
    assert tick_names(permutations, 100) == permutations
    assert tick_names(permutations, 40) == ["0", "1", "2"]
    assert tick_names(["airplane/automobile", "bird/cat"], 40) == ["1", "2"]


def test_a_violin_ends_where_its_inputs_do() -> None:
    values = [value for value, _ in outline([0, 3, 9, 0, 1, 0, 0, 0], 0.8)]
    assert (min(values), max(values)) == pytest.approx((0.1, 0.5))


def test_the_expectation_is_alpha_times_the_harmonic_numbers() -> None:
    assert expectation(12.0, 4) == pytest.approx([12, 18, 22, 25])
    assert expectation(None, 4) == []


def test_a_maps_colors_run_from_its_own_lowest_to_its_highest_value() -> None:
    matrix = [[99.9, None], [99.9, 90.0]]
    marks = [e for e in svg(accuracy_map(matrix, ["a", "b"], "accuracy")).iter() if "mark" in str(e.get("class"))]
    assert [e.get("style") for e in marks] == ["--v:0.99", "--v:0.99", "--v:0.00"]
    low, high = color_range([[99.81, None], [99.79, 99.83]])  # nearly alike, and not made to look different
    assert high - low >= 2


def linear_light(color: str) -> list[float]:
    """Red, green and blue of a CSS color, as amounts of light."""
    digits = color.lstrip("#")
    wide = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(wide[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


FIRST, SECOND = (0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566)
LMS = np.array((FIRST, SECOND, (0.0883024619, 0.2817188376, 0.6299787005)))
"""OKLab is linear in the cube roots of what this makes of light, so that colors are mixed there."""


def luminance(little: str, much: str, share: float) -> float:
    """Of a color between two in OKLab, as WCAG defines it."""
    ends = [np.cbrt(LMS @ linear_light(color)) for color in (little, much)]
    light = np.linalg.solve(LMS, (ends[0] + (ends[1] - ends[0]) * share) ** 3)
    return float(light.clip(0, 1) @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_numbers_can_be_read_on_every_color_of_the_scale(theme: int) -> None:
    """WCAG asks for a contrast of 4.5; also where the text's color changes."""
    css = (Path(charts.__file__).parent / "templates" / "page.css").read_text()
    block = css.split("prefers-color-scheme: dark")[theme]
    color = dict(re.findall(r"--(\w+): (#\w+)", block)) | {"c1": "#000"}
    matrix = [[100 * value / 99 for value in range(10 * row, 10 * row + 10)] for row in range(10)]
    cells = [e for e in svg(accuracy_map(matrix, list("abcdefghij"), "accuracy")).iter() if e.tag in ("rect", "text")]
    checked = 0
    for mark, text in itertools.pairwise(cells):
        if (found := re.search(r"cell (c\d)", str(text.get("class")))) is None:
            continue
        share = float(str(mark.get("style")).removeprefix("--v:"))
        ink = color[found[1]]
        low, high = sorted((luminance(color["little"], color["much"], share), luminance(ink, ink, 0)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (share, found[1])
        checked += 1
    assert checked == 100
