"""Lines and dots: several series over one axis, each with its own colour and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.report.accuracy_map import tick_names
from ibpwf.lab.report.chart import Frame, label, legend, mark, shape, svg
from ibpwf.lab.report.markup import Markup, el, number

WIDTH, HEIGHT = 420.0, 270.0
COLOURS = 8


@dataclass(frozen=True)
class Point:
    """A value of a series, its deviation where there is one, and what to say of it."""

    x: float
    y: float
    std: float | None
    tip: str


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]


def y_range(points: Sequence[Point], *, zero: bool = False, highest: float | None = None) -> tuple[float, float]:
    """All values with their deviations, and a little room."""
    low = min(point.y - (point.std or 0.0) for point in points)
    high = max(point.y + (point.std or 0.0) for point in points)
    low = 0.0 if zero else low
    room = (high - low) * 0.06 or max(abs(high) * 0.02, 0.5)
    top = high + room if highest is None else min(high + room, highest)
    return (0.0 if zero else low - room), max(top, low + 1e-9)


def series_chart(
    series: Sequence[Series],
    x_marks: Sequence[tuple[float, str]],
    axes: tuple[str, str],
    title: str,
    *,
    zero: bool = False,
    highest: float | None = None,
) -> Markup:
    """One panel: a line with dots per series, whiskers of one standard deviation."""
    keys = [(f"shape {i}", f"s{i % COLOURS}", one.name) for i, one in enumerate(series)]
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    points = [point for one in series for point in one.points]
    places = [x for x, _ in x_marks]
    room = (max(places) - min(places)) * 0.06 or 0.5
    frame = Frame(
        WIDTH,
        HEIGHT + used,
        (min(places) - room, max(places) + room),
        y_range(points, zero=zero, highest=highest),
        top=used + 12,
        left=76,
    )
    parts = [*key_parts, *frame.y_axis(axes[1]), *frame.x_axis(_thinned(x_marks, frame), axes[0])]
    for i, one in enumerate(series):
        colour = f"s{i % COLOURS}"
        path = " ".join(f"{number(frame.x(p.x))},{number(frame.y(p.y))}" for p in one.points)
        parts.append(el("polyline", class_=f"line {colour}", points=path))
        for point in one.points:
            x = frame.x(point.x)
            if point.std:
                low, high = frame.y(point.y - point.std), frame.y(point.y + point.std)
                parts.append(el("line", class_=f"line {colour}", x1=x, x2=x, y1=low, y2=high))
            parts.append(shape(i, x, frame.y(point.y), 4.0, colour))
    for one in series:
        parts += [
            mark(f"{one.name}, {point.tip}", frame.x(point.x) - 7, frame.y(point.y) - 7, 14, 14, "hit")
            for point in one.points
        ]
    return svg(frame.width, frame.height, title, parts)


def _thinned(marks: Sequence[tuple[float, str]], frame: Frame) -> list[tuple[float, str]]:
    """Tick labels that do not run into each other."""
    shown: list[tuple[float, str]] = []
    end = -math.inf
    for value, text in marks:
        half = 3.8 * len(text)
        if frame.x(value) - half > end:
            shown.append((value, text))
            end = frame.x(value) + half + 4
    return shown


def scatter(points: Sequence[tuple[float, float, int]], names: Sequence[str], title: str) -> Markup:
    """Points of several groups on a plane without units; each group's name, or number, stands at its middle."""
    width = 520.0
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    side, top = width - 24, 12.0
    left = (width - (max(xs) - min(xs)) / span * side) / 2
    parts: list[Markup] = []
    place = [(left + (x - min(xs)) / span * side, top + (max(ys) - y) / span * side, group) for x, y, group in points]
    for x, y, group in place:
        parts.append(shape(group // 4, x, y, 3.0, f"s{group % COLOURS}"))
    shown = tick_names(names, 60)
    for group, name in enumerate(names):
        mine = [(x, y) for x, y, g in place if g == group]
        if mine:
            # The box that holds the middle half both ways: whole groups overlap.
            (left_, x, right), (top_, y, bottom) = (_quartiles(values) for values in zip(*mine, strict=True))
            parts.append(label(x, y + 5, shown[group], "middle", "group"))
            tip = f"{name}: {len(mine)} images"
            parts.append(mark(tip, left_ - 4, top_ - 4, right - left_ + 8, bottom - top_ + 8, "hit"))
    return svg(width, top + (max(ys) - min(ys)) / span * side + 16, title, parts)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 4], ordered[len(ordered) // 2], ordered[last - last // 4]
