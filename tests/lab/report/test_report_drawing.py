"""The parts of a chart: ticks are round and inside, scales are even, colours can be told apart."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibpwf.lab.report.accuracy_map import tick_names
from ibpwf.lab.report.chart import Frame, label_of, log_ticks, ticks
from ibpwf.lab.report.colours import LEVELS, contrast, level, level_colour, scale_css, text_on, to_rgb
from ibpwf.lab.report.factor_use import expectation
from ibpwf.lab.report.markup import clean, el, number, short, text
from ibpwf.lab.report.violins import Violin, violin_chart

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
    assert [label_of(v) for v in (0, 0.5, 2000, 1e-5, 2e7)] == ["0", "0.5", "2000", "1e-5", "2e7"]


def test_a_frame_maps_its_corners() -> None:
    frame = Frame(400, 300, (0, 10), (1, 100), log_y=True)
    assert frame.x(0) == frame.left
    assert frame.x(10) == 400 - frame.right
    assert frame.y(100) == pytest.approx(frame.top)
    assert frame.y(10) == pytest.approx(frame.top + frame.inner_height / 2)


def lightness(colour: str) -> float:
    """OKLab's L, from its definition."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in to_rgb(colour)))
    l_ = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    m_ = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s_ = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return 0.2104542553 * l_ + 0.7936177850 * m_ - 0.0040720468 * s_


@pytest.mark.parametrize("dark", [False, True])
def test_equal_steps_of_the_scale_look_equal(dark: bool) -> None:
    values = [lightness(level_colour(step, dark=dark)) for step in range(LEVELS)]
    gaps = [b - a for a, b in itertools.pairwise(values)]
    assert all((gap > 0) == dark for gap in gaps)
    mean = sum(gaps) / len(gaps)
    assert all(abs(gap - mean) < 0.35 * abs(mean) for gap in gaps)


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_can_be_read_on_every_step(dark: bool) -> None:
    assert all(contrast(text_on(c), c) >= 4.5 for c in (level_colour(step, dark=dark) for step in range(LEVELS)))
    assert scale_css(dark=dark).count("{") == 2 * LEVELS


@given(numbers, numbers, numbers)
def test_a_level_is_always_one_of_the_scale(value: float, low: float, high: float) -> None:
    assert 0 <= level(value, low, high) < LEVELS


@given(st.text(max_size=50))
def test_any_text_survives_as_text(given_text: str) -> None:
    made = el("p", text(given_text), title=given_text, data_x="&")
    parsed = ET.fromstring(made)
    same = clean(given_text).replace("\r\n", "\n").replace("\r", "\n")
    assert (parsed.text or "") == same
    assert len(short(given_text, 9)) <= 9


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        number(math.nan)
    assert number(-0.001) == "0"


def test_ticks_are_names_or_what_tells_them_apart_or_numbers() -> None:
    permutations = [f"permutation-{i}" for i in range(3)]
    assert tick_names(["0/1", "2/3"], 40) == ["0/1", "2/3"]
    assert tick_names(permutations, 100) == permutations
    assert tick_names(permutations, 40) == ["0", "1", "2"]
    assert tick_names(["airplane/automobile", "bird/cat"], 40) == ["1", "2"]
    assert tick_names(["a-", "a-long-name-indeed"], 20) == ["1", "2"]


def test_a_violin_ends_where_its_inputs_do() -> None:
    violin = Violin("Fashion-MNIST", "foreign", 0.2, (0.1, 0.15, 0.2, 0.25, 0.3), (0, 3, 9, 0, 1, 0, 0, 0))
    drawing = ET.fromstring(violin_chart([violin] * 7, 0.8, "entropy, nats", "t"))
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
