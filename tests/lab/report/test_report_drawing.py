"""The parts of a chart: ticks are round and inside, scales are even, colors can be told apart."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibpwf.lab.report.colors import LEVELS, contrast, level, level_color, scale_css, text_on, to_rgb
from ibpwf.lab.report.drawing import (
    Chart,
    Drawing,
    clean,
    coordinate,
    log_ticks,
    short,
    tick_label,
    tick_names,
    ticks,
)
from ibpwf.lab.report.experiment_record import EntropySet
from ibpwf.lab.report.paper_charts import violin_chart
from ibpwf.lab.report.rendering import environment
from ibpwf.lab.report.run_charts import accuracy_map, color_range, expectation

numbers = st.floats(-1e9, 1e9, allow_nan=False)


@given(numbers, st.floats(1e-6, 1e9))
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


def test_tick_labels_are_short() -> None:
    assert [tick_label(v) for v in (0, 0.5, 2000, 1e-5, 2e7)] == ["0", "0.5", "2000", "1e-5", "2e7"]


def test_a_chart_maps_its_corners() -> None:
    chart = Chart("t", (0, 10), (1, 100), [("line", "mean", "a key")], log_y=True)
    assert chart.x(0) == chart.left
    assert chart.x(10) == chart.right < chart.width
    assert chart.y(100) == pytest.approx(chart.top)
    assert chart.y(10) == pytest.approx((chart.top + chart.base) / 2)
    assert chart.y(1) == pytest.approx(chart.base)
    assert chart.base < chart.height


def lightness(color: str) -> float:
    """OKLab's L, from its definition."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in to_rgb(color)))
    l_ = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    m_ = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s_ = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return 0.2104542553 * l_ + 0.7936177850 * m_ - 0.0040720468 * s_


@pytest.mark.parametrize("dark", [False, True])
def test_equal_steps_of_the_scale_look_equal(dark: bool) -> None:
    values = [lightness(level_color(step, dark=dark)) for step in range(LEVELS)]
    gaps = [b - a for a, b in itertools.pairwise(values)]
    assert all((gap > 0) == dark for gap in gaps)
    mean = sum(gaps) / len(gaps)
    assert all(abs(gap - mean) < 0.35 * abs(mean) for gap in gaps)


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_can_be_read_on_every_step(dark: bool) -> None:
    assert all(contrast(text_on(c), c) >= 4.5 for c in (level_color(step, dark=dark) for step in range(LEVELS)))
    assert scale_css(dark=dark).count("{") == 2 * LEVELS


@given(numbers, numbers, numbers)
def test_a_level_is_always_one_of_the_scale(value: float, low: float, high: float) -> None:
    assert 0 <= level(value, low, high) < LEVELS


def svg(drawing: Drawing) -> ET.Element:
    """As the page has it."""
    macros = environment().get_template("drawing.svg").module
    return ET.fromstring(macros.drawing(drawing))  # type: ignore[attr-defined]


@given(st.text(max_size=50))
def test_any_text_survives_as_text(given_text: str) -> None:
    drawing = Drawing(given_text, 10, 10)
    drawing.label(0, 0, given_text)
    drawing.mark(given_text, 0, 0, 1, 1)
    parsed = svg(drawing)
    same = clean(given_text).replace("\r\n", "\n").replace("\r", "\n")
    label, mark = parsed
    assert (label.text or "") == same
    assert "".join(title.text or "" for title in mark) == same
    assert len(short(given_text, 9)) <= 9


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        coordinate(math.nan)
    assert coordinate(-0.001) == "0"


def test_ticks_are_names_or_what_tells_them_apart_or_numbers() -> None:
    permutations = [f"permutation-{i}" for i in range(3)]
    assert tick_names(["0/1", "2/3"], 40) == ["0/1", "2/3"]
    assert tick_names(permutations, 100) == permutations
    assert tick_names(permutations, 40) == ["0", "1", "2"]
    assert tick_names(["airplane/automobile", "bird/cat"], 40) == ["1", "2"]
    assert tick_names(["a-", "a-long-name-indeed"], 20) == ["1", "2"]


def test_a_violin_ends_where_its_inputs_do() -> None:
    counts = {"quantiles": [0.1, 0.15, 0.2, 0.25, 0.3], "histogram": [0, 3, 9, 0, 1, 0, 0, 0]}
    violin = EntropySet(name="Fashion-MNIST", kind="foreign", mean=0.2, **counts)
    drawing = svg(violin_chart([violin] * 7, 0.8, "entropy, nats", "t"))
    polygon = next(element for element in drawing.iter() if element.tag == "polygon")
    heights = [float(pair.split(",")[1]) for pair in str(polygon.get("points")).split()]
    grid = [float(str(e.get("y1"))) for e in drawing.iter() if e.get("class") == "rule"]  # 0, 0.2, 0.4, 0.6, 0.8
    unit = (grid[0] - grid[1]) / 0.2
    assert max(heights) == pytest.approx(grid[0] - 0.1 * unit, abs=0.02)
    assert min(heights) == pytest.approx(grid[0] - 0.5 * unit, abs=0.02)
    assert {"Fashion-", "MNIST"} <= {element.text for element in drawing.iter() if element.tag == "text"}


def test_the_expectation_is_alpha_times_the_harmonic_numbers() -> None:
    assert expectation(12.0, 4) == pytest.approx([12, 18, 22, 25])
    assert expectation(None, 4) == []


def test_a_maps_colors_run_from_its_own_lowest_to_its_highest_value_and_it_says_so() -> None:
    matrix = [[99.9, None], [99.9, 90.2]]
    assert color_range(matrix) == (90, 100)
    drawing = svg(accuracy_map(matrix, ["a", "b"], "accuracy"))
    fills = [str(e.get("class")).split()[1] for e in drawing.iter() if "mark" in str(e.get("class"))]
    assert fills == [f"v{LEVELS - 1}", f"v{LEVELS - 1}", "v0"]
    words = [element.text for element in drawing.iter() if element.tag == "text"]
    assert {"90 %", "100 %", "colors: lowest to highest of this map"} <= set(words)


def test_values_that_are_all_alike_are_not_made_to_look_different() -> None:
    low, high = color_range([[99.81, None], [99.79, 99.83]])
    assert high - low >= 2
    assert level(99.81, low, high) - level(99.79, low, high) <= 1
    assert color_range([]) == (0, 100)
