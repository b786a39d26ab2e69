"""The figures of comparisons and of the paper's experiments: methods side by side, series, violins, a map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ibpwf.lab.report.drawing import Chart, Drawing, short, tick_label, tick_names, ticks
from ibpwf.lab.report.experiment_record import (
    Compared,
    ComparisonRecord,
    EntropySet,
    GrowthPanel,
    SweepPanel,
    TableRow,
)
from ibpwf.lab.report.records import Spread

COLORS = 8
ROW = 22.0
LONGEST = 14
OURS, PAPER = "s4", "s1"
KINDS = {"seen": ("s4", "known"), "unseen": ("s1", "not known"), "foreign": ("s6", "of no task")}


Line = tuple[str, Compared]


def _tip(name: str, found: Compared) -> str:
    tip = f"{name}: {found.ours.shown()} %" if found.ours else f"{name}: no answer"
    if found.judged:
        tip += f", {found.judged.shown()} % {found.note}"
    return f"{tip}; the paper {found.paper.shown()} % {found.note}".rstrip() if found.paper else tip


def table_charts(rows: Sequence[TableRow], settings: Mapping[str, str]) -> dict[str, Chart]:
    """A chart per setting with at least three methods in it, by title."""
    charts = {}
    for setting, name in settings.items():
        mine = [row for row in rows if row.setting == setting and row.ours is not None]
        lines = [
            (row.method, Compared(ours=row.ours, paper=row.paper, note=row.paper.note if row.paper else ""))
            for row in mine
        ]
        if len(lines) > 2:
            title = f"{mine[0].benchmark}, {name}"
            charts[title] = dot_plot(lines, None, f"{title}: accuracy of each method, ours and the paper's")
    return charts


def comparison_charts(record: ComparisonRecord) -> dict[str, Chart]:
    """A chart per setting that any method answers, by its name."""
    charts = {}
    for setting, name, part in (("task", "task given", "given"), ("class", "task inferred", "inferred")):
        lines = [(row.method, getattr(row, part)) for row in record.rows if row.error is None]
        lines = [(method, found) for method, found in lines if found.ours is not None]
        if lines:
            title = f"{record.title}: accuracy after the last task, {name}, method by method"
            charts[name.capitalize()] = dot_plot(lines, record.guessing.get(setting), title)
    return charts


def dot_plot(lines: Sequence[Line], guessing: float | None, title: str) -> Chart:
    """A line per method, best first; whiskers are a standard deviation over seeds. Guessing is drawn unless it is far
    below them all."""
    spreads = [one for _, found in lines for one in (found.ours, found.judged, found.paper) if one]
    low = min(one.mean - (one.std or 0.0) for one in spreads)
    if guessing is not None and low - guessing > 100 - low:
        guessing = None
    keys = [("sign 0", OURS, "ours")]
    keys += [("sign 2", PAPER, "the paper's")] if any(found.paper for _, found in lines) else []
    keys += [("line", "expected", "guessing")] if guessing is not None else []
    low = low if guessing is None else min(low, guessing)
    room = (100 - low) * 0.04
    order = sorted(lines, key=lambda line: -line[1].ours.mean if line[1].ours else 1.0)
    left = 7.2 * max(len(short(name, LONGEST)) for name, _ in order) + 16
    chart = Chart(
        title, (max(low - room, 0.0), 100 + room / 2), (0.0, 1.0), keys, height=ROW * len(order) + 58, left=left
    )
    marks = [value for value in ticks(*chart.x_range, 6) if value <= 100]
    for value in marks:
        chart.upright("rule", chart.x(value), (chart.top, chart.base))
    chart.x_axis([(value, tick_label(value)) for value in marks], "accuracy, %")
    if guessing is not None:
        chart.upright("expected", chart.x(guessing), (chart.top, chart.base))
    places = [chart.top + (i + 0.5) * ROW for i in range(len(order))]
    for (name, found), y in zip(order, places, strict=True):
        own = "own" if name.startswith("ibpwf") else ""
        chart.label(chart.left - 8, y + 4.5, short(name, LONGEST), "end", own)
        chart.across("rule", (chart.left, chart.right), y)
        _whisker(chart, y + 3.2, found.paper, PAPER, 2)
        _whisker(chart, y - 3.2, found.judged or found.ours, OURS, 0)
    for line, y in zip(order, places, strict=True):
        chart.mark(_tip(*line), chart.left, y - ROW / 2, chart.inner_width, ROW)
    return chart


def _whisker(chart: Chart, y: float, value: Spread | None, color: str, sign: int) -> None:
    if value is None:
        return
    if value.std:
        low, high = chart.x_range
        ends = max(value.mean - value.std, low), min(value.mean + value.std, high)
        chart.across(f"line {color}", (chart.x(ends[0]), chart.x(ends[1])), y)
    chart.sign(sign, chart.x(value.mean), y, 3.6, color)


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


def _value_range(points: Sequence[Point], zero: bool, highest: float | None) -> tuple[float, float]:
    """All values with their deviations, and a little room."""
    low = 0.0 if zero else min(point.y - (point.std or 0.0) for point in points)
    high = max(point.y + (point.std or 0.0) for point in points)
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
) -> Chart:
    """A line with signs per series, each with its own color and sign, whiskers of one standard deviation."""
    keys = [(f"series {i}", f"s{i % COLORS}", one.name) for i, one in enumerate(series)]
    places = [x for x, _ in x_marks]
    room = (max(places) - min(places)) * 0.06 or 0.5
    values = _value_range([point for one in series for point in one.points], zero, highest)
    chart = Chart(title, (min(places) - room, max(places) + room), values, keys, left=76)
    chart.y_axis(axes[1])
    chart.x_axis(_thinned(x_marks, chart), axes[0])
    for i, one in enumerate(series):
        color = f"s{i % COLORS}"
        chart.path(f"line {color}", chart.points((point.x, point.y) for point in one.points))
        for point in one.points:
            if point.std:
                ends = chart.y(point.y - point.std), chart.y(point.y + point.std)
                chart.upright(f"line {color}", chart.x(point.x), ends)
            chart.sign(i, chart.x(point.x), chart.y(point.y), 4.0, color)
    for one in series:
        for point in one.points:
            chart.mark(f"{one.name}, {point.tip}", chart.x(point.x) - 7, chart.y(point.y) - 7, 14, 14)
    return chart


def _thinned(marks: Sequence[tuple[float, str]], chart: Chart) -> list[tuple[float, str]]:
    """Tick labels that do not run into each other."""
    shown: list[tuple[float, str]] = []
    end = -math.inf
    for value, text in marks:
        half = 3.8 * len(text)
        if chart.x(value) - half > end:
            shown.append((value, text))
            end = chart.x(value) + half + 4
    return shown


def sweep_chart(panel: SweepPanel, setting: str, sign: str, title: str) -> Chart:
    """Accuracy in both settings against the value of a setting."""
    log = setting == "alpha"
    places = [math.log10(point.value) if log else point.value for point in panel.points]
    labels = [tick_label(point.value) for point in panel.points]
    series = []
    for name, spreads in (
        ("task given", [point.task for point in panel.points]),
        ("task inferred", [point.class_ for point in panel.points]),
    ):
        line = zip(places, labels, spreads, strict=True)
        points = [Point(x, s.mean, s.std, f"{sign} = {label}: {s.shown()} %") for x, label, s in line]
        series.append(Series(name, points))
    axes = (f"{sign} (log scale)" if log else sign, "accuracy, %")
    return series_chart(series, list(zip(places, labels, strict=True)), axes, title, highest=100.5)


def _task_marks(panel: GrowthPanel) -> list[tuple[float, str]]:
    return [(float(t), str(t)) for t in range(1, max(len(line.parameters) for line in panel.lines) + 1)]


def stored_chart(panel: GrowthPanel, title: str) -> Chart:
    """Numbers stored against tasks learnt."""
    series = []
    for line in panel.lines:
        counted = enumerate(line.parameters, start=1)
        points = [Point(t, n / 1000, None, f"task {t}: {n:,.0f} numbers") for t, n in counted]
        series.append(Series(line.label, points))
    axes = ("tasks learnt", "numbers stored, thousands")
    return series_chart(series, _task_marks(panel), axes, title, zero=True)


def growth_chart(panel: GrowthPanel, title: str) -> Chart:
    """Accuracy against tasks learnt."""
    series = []
    for line in panel.lines:
        points = [Point(t, s.mean, s.std, f"task {t}: {s.shown()} %") for t, s in enumerate(line.task, start=1)]
        series.append(Series(line.label, points))
    return series_chart(series, _task_marks(panel), ("tasks learnt", "accuracy, %"), title, highest=100.5)


def scatter(points: Sequence[Sequence[float]], names: Sequence[str], title: str) -> Drawing:
    """Points of several groups on a plane without units; each group's name, or number, stands at its middle."""
    width = 520.0
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    wide, tall = max(xs) - min(xs), max(ys) - min(ys)
    unit = (width - 24) / (max(wide, tall) or 1.0)
    left, top = (width - wide * unit) / 2, 12.0
    drawing = Drawing(title, width, top + tall * unit + 16)
    placed = [(left + (x - min(xs)) * unit, top + (max(ys) - y) * unit, int(group)) for x, y, group in points]
    for x, y, group in placed:
        drawing.sign(group // 4, x, y, 3.0, f"s{group % COLORS}")
    shown = tick_names(names, 60)
    for group, name in enumerate(names):
        mine = [(x, y) for x, y, g in placed if g == group]
        if mine:
            # The box that holds the middle half both ways: whole groups overlap.
            (x1, x, x2), (y1, y, y2) = (_quartiles(values) for values in zip(*mine, strict=True))
            drawing.label(x, y + 5, shown[group], class_="group")
            drawing.mark(f"{name}: {len(mine)} images", x1 - 4, y1 - 4, x2 - x1 + 8, y2 - y1 + 8)
    return drawing


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered, last = sorted(values), len(values) - 1
    return ordered[last // 4], ordered[len(ordered) // 2], ordered[last - last // 4]


def violin_chart(sets: Sequence[EntropySet], highest: float, axis: str, title: str) -> Chart:
    """How a quantity is distributed in several sets of inputs: a violin each, with its mean, median and quartiles;
    the fullest bin of each is as wide as there is room."""
    there = {one.set_kind for one in sets}
    keys = [("box", f"dot {color}", words) for kind, (color, words) in KINDS.items() if kind in there]
    chart = Chart(title, (-0.5, len(sets) - 0.5), (0.0, highest * 1.02), keys, bottom=58)
    room = chart.inner_width / max(len(sets), 1)
    chart.y_axis(axis)
    chart.x_axis([(i, "") for i in range(len(sets))], "test set", 48)
    for i, one in enumerate(sets):
        color, words = KINDS[one.set_kind]
        for line, name in enumerate(_name_lines(one.name, room)):
            chart.label(chart.x(i), chart.base + 17 + 13 * line, name)
        outline = _outline(one.histogram, highest)
        right = chart.points((i + half, value) for value, half in outline)
        left = chart.points((i - half, value) for value, half in outline)
        chart.path(f"violin {color}", [*right, *reversed(left)], closed=True)
        _, low, median, high, _ = one.quantiles
        x, mean = chart.x(i), chart.y(one.mean)
        chart.upright("quartiles", x, (chart.y(low), chart.y(high)))
        chart.across("average", (x - 9, x + 9), mean)
        chart.add("circle", "median", cx=x, cy=chart.y(median), r=3.2)
        tip = f"{one.name} ({words}): mean {one.mean:.3f}, median {median:.3f}, half of them {low:.3f} to {high:.3f}"
        chart.column_mark(tip, i)
    return chart


def _name_lines(name: str, room: float) -> list[str]:
    """A name on one line, or broken after its first hyphen; cut where it still does not fit."""
    if len(name) * 7 <= room - 2:
        return [name]
    head, hyphen, tail = name.partition("-")
    most = max(int(room / 6.0), 3)
    return [short(head + hyphen, most), *([short(tail, most)] if tail else [])]


def _outline(histogram: Sequence[int], highest: float) -> list[tuple[float, float]]:
    """One side of a violin, value and half width, from its first input to its last; on a square-root scale, for most
    inputs of a known set share one bin."""
    step, widest = highest / len(histogram), max(histogram) or 1
    filled = [bin_ for bin_, count in enumerate(histogram) if count]
    first, last = (filled[0], filled[-1]) if filled else (0, 0)
    halves = [0.42 * (count / widest) ** 0.5 for count in histogram[first : last + 1]]
    middles = [((first + i + 0.5) * step, half) for i, half in enumerate(halves)]
    end = halves[-1] if len(halves) == 1 else 0.5 * halves[-1]  # both ends reach to the edge of their bin
    return [(first * step, halves[0]), *middles, ((last + 1) * step, end)]
