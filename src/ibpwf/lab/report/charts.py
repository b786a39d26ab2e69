"""The figures of the report: maps, lines, bars, dots, violins and a plane."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ibpwf.factors.sticks import expected_total
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.report.drawing import WIDTH, Chart, Drawing, Key, short, tick_label, tick_names, ticks
from ibpwf.lab.report.experiments import Compared, Comparison
from ibpwf.lab.report.records import Tree
from ibpwf.lab.report.runs import Scores

MOST_NUMBERED = 12  # with more tasks than this, the cells of a map are too small for numbers
MOST_MARKS = 30_000  # beyond this, cells have no tips: the page would become too heavy
ROW = 22.0
OURS, PAPER = "s4", "s1"
KINDS = {"seen": ("s4", "known"), "unseen": ("s1", "not known"), "foreign": ("s6", "of no task")}


def cell_text(value: float) -> str:
    """97.2, and 100 instead of 100.0."""
    return "100" if value >= 99.95 else f"{value:.1f}"


def color_range(matrix: Matrix) -> tuple[int, int]:
    """Whole percentages from the lowest to the highest value, at least 2 apart: noise is not made to look like
    change."""
    known = [value for row in matrix for value in row if value is not None] or [0.0, 100.0]
    low, high = math.floor(min(known)), math.ceil(max(known))
    return min(low, high - 2), high


def accuracy_map(matrix: Matrix, names: Sequence[str], title: str) -> Drawing:
    """The accuracy matrix: rows are moments (after task i), columns are tasks."""
    size, top = len(matrix), 10.0
    cell = min((WIDTH - 72) / max(size, 1), 62.0)
    side = cell * size
    left = (WIDTH - side + 52) / 2
    low, high = color_range(matrix)
    labels = [short(tick, 8) for tick in tick_names(names, cell - 4)]
    drawing = Drawing(title, WIDTH, top + side + 98)
    for i, j in itertools.product(range(size), repeat=2):
        value = matrix[i][j]
        if value is None:
            continue
        x, y, v = left + j * cell, top + i * cell, (value - low) / (high - low)
        tip = f"task {names[j]} after learning task {names[i]}: {value:.2f} %"
        drawing.cell(v, x + 1, y + 1, cell - 2, cell - 2, tip)
        if size <= MOST_NUMBERED:
            drawing.label(x + cell / 2, y + cell / 2 + 4.5, cell_text(value), class_=f"cell c{min(int(v * 3), 2)}")
    for i in range(0, size, math.ceil(size / 20)):
        drawing.label(left - 8, top + (i + 0.5) * cell + 4.5, labels[i], "end")
        drawing.label(left + (i + 0.5) * cell, top + side + 17, labels[i])
    middle, bar = left + side / 2, min(side, 280.0)
    drawing.label(middle, top + side + 36, "accuracy on task", class_="axis")
    drawing.upward_label(left - 18 - 7 * max(map(len, labels), default=1), top + side / 2, "after learning task")
    drawing.color_bar(middle - bar / 2, top + side + 52, bar, f"{low} %", f"{high} %")
    drawing.label(min(middle, WIDTH - 132), top + side + 91, "colors: lowest to highest of this map", class_="axis")
    return drawing


def strongest(scores: Scores) -> float:
    """The upper end of the color scale: a round number that few strengths exceed (99th percentile)."""
    sizes = sorted(abs(value) for row in scores.rows for value in row if value is not None)
    high = sizes[math.ceil(0.99 * len(sizes)) - 1] if sizes else 0.0
    if high <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(high))
    return float(math.ceil(high / unit * 2) / 2 * unit)


def score_map(scores: Scores, names: Sequence[str], title: str) -> Drawing:
    """λ_t = r_t ⊙ b_t of one layer, a row per task, a column per factor in stick order: empty where a task does not
    use a factor, a mark under the factors that the task opened."""
    columns, width = max(scores.width, 1), 1000.0
    left, right, top, high = (
        34.0 + 7 * max(len(short(name, 16)) for name in names),
        width - 96,
        28.0,
        strongest(scores),
    )
    height = min(max(220.0 / len(scores.rows), 10.0), 34.0)
    cell, bottom = (right - left) / columns, top + height * len(scores.rows)
    titled = sum(value is not None for row in scores.rows for value in row) <= MOST_MARKS
    drawing = Drawing(title, width, bottom + 82, wide=True)
    for t, row in enumerate(scores.rows):
        y = top + t * height
        drawing.rect("empty", left, y + 1, cell * columns, height - 2)
        used = [(k, value) for k, value in enumerate(row) if value is not None]
        for k, value in used:
            kind = "new" if k in scores.new[t] else "reused"
            tip = f"task {names[t]}, factor {k + 1}: λ = {value:.3g}, {kind}" if titled else ""
            drawing.cell(abs(value) / high, left + k * cell, y + 1, cell + 0.05, height - 2, tip)
        for k in sorted(scores.new[t]):
            drawing.rect("new", left + k * cell, y + height - 5, max(cell, 1.2), 4)
        drawing.label(left - 8, y + height / 2 + 4.5, short(names[t], 16), "end")
        drawing.label(right + 8, y + height / 2 + 4.5, f"{len(used)}, {len(scores.new[t])} new", "start")
    for value in (tick for tick in ticks(1, columns, 10) if tick >= 1):
        x = left + (value - 0.5) * cell
        drawing.line("base", x, bottom, x, bottom + 4)
        drawing.label(x, bottom + 17, tick_label(value))
    drawing.label(left + cell * columns / 2, bottom + 36, "factor, in stick order", class_="axis")
    drawing.upward_label(13, (top + bottom) / 2, "task")
    drawing.label(right + 8, top - 8, "factors used", "start", "axis")
    drawing.legend([("box", "empty", "not used"), ("box", "new", "opened by this task")], left, top - 10, 400)
    drawing.color_bar(left, bottom + 52, 240, "0", f"≥ {high:g}", "strength |λ|")
    return drawing


def expectation(alpha: float | None, tasks: int) -> list[float]:
    """α·H_t for t = 1 … tasks: the prior mean of the number of factors that t tasks use together."""
    return [expected_total(alpha, t) for t in range(1, tasks + 1)] if alpha is not None and alpha > 0 else []


def use_chart(uses: Sequence[Tree], names: Sequence[str], alpha: float | None, title: str) -> Chart:
    """One layer: reused and new factors as stacked bars, the dictionary, and what the IBP expects."""
    expected = expectation(alpha, len(uses))
    highest = max([one for use in uses for one in (use.total, use.active)] + expected + [1.0])
    keys: list[Key] = [("box", "reused", "reused"), ("box", "new", "new"), ("line", "total", "dictionary")]
    keys += [("line", "expected", "IBP prior, α·H")] if expected else []
    chart = Chart(title, (-0.5, len(uses) - 0.5), (0.0, highest * 1.06), keys, height=260, bottom=60)
    room = chart.inner_width / max(len(uses), 1)
    added = [f"+{use.new:.0f}" if use.new >= 10 or room < 40 else f"+{use.new:.3g}" for use in uses]
    roomy = 7.5 * max(map(len, added), default=0) <= room
    chart.y_axis("factors")
    for t, use in enumerate(uses):
        left, width = chart.x(t - 0.36), 0.72 * room
        chart.rect("reused", left, chart.y(use.reused), width, chart.base - chart.y(use.reused))
        chart.rect(
            "new", left, chart.y(use.reused + use.new), width, chart.y(use.reused) - chart.y(use.reused + use.new)
        )
        if roomy:
            chart.label(chart.x(t), chart.base + 32, added[t], class_="fresh")
    marks = [
        (float(t), short(name, 10)) for t, name in enumerate(tick_names(names[: len(uses)], min(room - 4, 70.0)))
    ]
    chart.x_axis(marks, "task, and how many factors it added" if roomy else "task", 50 if roomy else 36)
    if expected:
        chart.path("expected", chart.points(enumerate(expected)))
    totals = chart.points((t, use.total) for t, use in enumerate(uses))
    chart.path("total", totals)
    for x, y in totals:
        chart.add("circle", "total", cx=x, cy=y, r=2.8)
    for t, use in enumerate(uses):
        tip = f"task {names[t]}: {use.reused:g} reused + {use.new:g} new = {use.active:g} active; "
        tip += f"dictionary {use.total:g}" + (f"; IBP expects {expected[t]:.1f}" if expected else "")
        chart.column_mark(tip, t)
    return chart


class Point(NamedTuple):
    """A value, its deviation where there is one, and what to say of it."""

    x: float
    y: float
    std: float | None = None
    tip: str = ""


@dataclass(frozen=True)
class Series:
    """Parts of a line, with a color (a CSS class) and, unless `signs` is False, a sign at every point.

    `joined` is False for points alone; a part of a single point is then drawn as a short dash.
    """

    name: str
    parts: Sequence[Sequence[Point]]
    color: str = ""
    signs: bool = True
    joined: bool = True


def lines(
    series: Sequence[Series],
    x_marks: Sequence[tuple[float, str]],
    axes: tuple[str, str],
    title: str,
    *,
    zero: bool = False,
    log: bool = False,
    highest: float | None = None,
    keys: Sequence[Key] | None = None,
    reach: tuple[float, float] | None = None,
    behind: Callable[[Chart], None] = lambda chart: None,
) -> Chart:
    """Series over a common axis, each with its own color and sign; whiskers are a standard deviation. `behind` draws
    what lies under them."""
    colors = [one.color or f"line s{i % 8}" for i, one in enumerate(series)]
    if keys is None:
        kinds = ("series" if one.joined else "sign" for one in series)
        keys = [(f"{kind} {i}", colors[i].removeprefix("line "), series[i].name) for i, kind in enumerate(kinds)]
    places = [x for x, _ in x_marks]
    points = [point for one in series for part in one.parts for point in part]
    low = 0.0 if zero else min(point.y - (point.std or 0.0) for point in points)
    high = max(point.y + (point.std or 0.0) for point in points)
    room = (high - low) * 0.06 or max(abs(high) * 0.02, 0.5)
    bounds = (0.0 if zero else low - room), max(min(high + room, highest or math.inf), low + 1e-9)
    beside = (max(places) - min(places)) * 0.06 or 0.5
    chart = Chart(
        title,
        reach or (min(places) - beside, max(places) + beside),
        (low / 1.15, high * 1.15) if log else bounds,
        keys,
        left=72,
        log_y=log,
    )
    behind(chart)
    chart.y_axis(axes[1] + (", log" if log else ""))
    chart.x_axis(x_marks, axes[0])
    for i, one in enumerate(series):
        for part in one.parts:
            spots = chart.points((point.x, point.y) for point in part)
            if one.joined and len(spots) > 1:
                chart.path(colors[i], spots)
            elif not one.signs and spots:
                chart.line(colors[i], spots[0][0] - 4, spots[0][1], spots[0][0] + 4, spots[0][1])
            for point, (x, y) in zip(part, spots, strict=True):
                if point.std:
                    chart.line(colors[i], x, chart.y(point.y - point.std), x, chart.y(point.y + point.std))
                if one.signs:
                    chart.sign(i, x, y, 4.0, colors[i].removeprefix("line "))
    for point in points:  # above everything else
        if point.tip:
            chart.rect("", chart.x(point.x) - 7, chart.y(point.y) - 7, 14, 14, point.tip)
    return chart


def curve(epochs: Sequence[Tree], part: str, names: Sequence[str], axis: str, title: str) -> Chart | None:
    """`part` (loss or extra) of every epoch, task after task. Phases in which the KL is 0 throughout are left out."""
    alive = {epoch.phase for epoch in epochs if epoch.extra} if part == "extra" else {epoch.phase for epoch in epochs}
    ranks = {phase: rank for rank, phase in enumerate(dict.fromkeys(epoch.phase for epoch in epochs))}
    steps: dict[tuple[int, int, int], list[Tree]] = {}
    for epoch in epochs:
        if epoch.phase in alive:
            steps.setdefault((epoch.task_number, ranks[epoch.phase], epoch.epoch), []).append(epoch)
    shown = [steps[key] for key in sorted(steps)]
    if not shown:
        return None
    tasks = [list(group) for _, group in itertools.groupby(enumerate(shown), lambda one: one[1][0].task_number)]
    seeds = sorted({epoch.seed for epoch in epochs})

    def point(at: int, step: Sequence[Tree]) -> Point:
        mean, first = statistics.fmean(epoch[part] for epoch in step), step[0]
        of = f" (mean of {len(step)} seeds)" if len(step) > 1 else ""
        name = names[first.task_number]
        return Point(at, mean, None, f"task {name}, {first.phase} epoch {first.epoch}: {mean:.4g}{of}")

    series = [Series("mean", [[point(at, step) for at, step in task] for task in tasks], "mean", signs=False)]
    keys: list[Key] = [("line", "mean", "mean over seeds" if len(seeds) > 1 else f"seed {seeds[0]}")]
    if 1 < len(seeds) <= 20:
        each = [
            [[Point(at, e[part]) for at, step in task for e in step if e.seed == seed] for task in tasks]
            for seed in seeds
        ]
        series = [Series("", [p for p in parts if p], "seed", signs=False) for parts in each] + series
        keys.append(("line", "seed", "each seed"))
    tuned = [at for at, step in enumerate(shown) if step[0].phase == "finetune"]
    keys += [("box", "band key", "fine-tuning")] if tuned else []

    def behind(chart: Chart) -> None:
        for at in tuned:
            x = chart.x(at - 0.5)
            chart.rect("band", x, chart.top, chart.x(at + 0.5) - x + 0.2, chart.base - chart.top)
        for task in tasks[1:]:
            chart.line("split", chart.x(task[0][0] - 0.5), chart.top, chart.x(task[0][0] - 0.5), chart.base)

    values = [epoch[part] for step in shown for epoch in step]
    log = part == "loss" and min(values) > 0 and max(values) / min(values) > 20
    labels = tick_names([names[task[0][1][0].task_number] for task in tasks], 330 / len(tasks))
    marks = [
        (statistics.fmean(at for at, _ in task), short(name, 12)) for task, name in zip(tasks, labels, strict=True)
    ]
    axes = (f"task ({len(shown)} epochs in all)", axis)
    reach = -0.5, len(shown) - 0.5
    return lines(
        series, marks, axes, title, zero=not log and min(values) >= 0, log=log, keys=keys, reach=reach, behind=behind
    )


def entropies(rows: Sequence[Sequence[float]], names: Sequence[str], title: str) -> Chart:
    """The entropy of each test set after each task, and the mean: of tasks learned, and of tasks to come."""
    series = []
    for words, color, side in (("task learned", "line s4", -0.15), ("task to come", "line s1", 0.15)):
        parts = [range(t + 1) if side < 0 else range(t + 1, len(row)) for t, row in enumerate(rows)]
        points = [
            Point(
                t + side, rows[t][one], None, f"{words}, {names[one]}, after task {names[t]}: {rows[t][one]:.3f} nats"
            )
            for t, part in enumerate(parts)
            for one in part
        ]
        means = [
            [Point(t + side, statistics.fmean(rows[t][one] for one in part))] for t, part in enumerate(parts) if part
        ]
        series += [Series(words, [points], color, joined=False), Series("", means, color, signs=False)]
    labels = tick_names(names[: len(rows)], 340 / len(rows))
    keys: list[Key] = [("sign 0", "s4", "task learned"), ("sign 2", "s1", "task to come")]
    marks = [(float(t), short(name, 10)) for t, name in enumerate(labels)]
    axes, reach = ("after learning task", "mean entropy, nats"), (-0.5, len(rows) - 0.5)
    return lines(series, marks, axes, title, zero=True, keys=keys, reach=reach)


def over_tasks(panel: Tree, part: str, title: str) -> Chart:
    """What each line of a growth panel stores (`parameters`) or reaches (`task`), against tasks learned."""
    series = []
    for one in panel.lines:
        if part == "task":
            points = [Point(t, s.mean, s.std, f"{one.label}, task {t}: {s} %") for t, s in enumerate(one.task, 1)]
        else:
            stored = enumerate(one.parameters, 1)
            points = [Point(t, n / 1000, None, f"{one.label}, task {t}: {n:,.0f} numbers") for t, n in stored]
        series.append(Series(one.label, [points]))
    marks = [(float(t), str(t)) for t in range(1, max(len(one.parts[0]) for one in series) + 1)]
    if part == "task":
        return lines(series, marks, ("tasks learned", "accuracy, %"), title, highest=100.5)
    return lines(series, marks, ("tasks learned", "numbers stored, thousands"), title, zero=True)


def sweep(panel: Tree, setting: str, title: str) -> Chart:
    """Accuracy with the task given and inferred against the value of a setting."""
    sign, log = {"alpha": "α", "kappa": "κ"}.get(setting, setting), setting == "alpha"
    places = [math.log10(point.value) if log else point.value for point in panel.points]
    labels = [tick_label(point.value) for point in panel.points]
    series = []
    for name, key in (("task given", "task"), ("task inferred", "class")):
        found = zip(places, labels, [point[key] for point in panel.points], strict=True)
        points = [Point(x, s.mean, s.std, f"{name}, {sign} = {label}: {s} %") for x, label, s in found]
        series.append(Series(name, [points]))
    axes = (f"{sign} (log scale)" if log else sign, "accuracy, %")
    return lines(series, list(zip(places, labels, strict=True)), axes, title, highest=100.5)


def table_charts(rows: Sequence[Tree], settings: Mapping[str, str]) -> dict[str, Chart]:
    """A chart per setting with at least three methods in it, by title."""
    charts = {}
    for setting, name in settings.items():
        mine = [row for row in rows if row.setting == setting and row.ours is not None]
        if len(mine) > 2:
            found = [(row.method, Compared(row.ours, row.paper, row.paper.note if row.paper else "")) for row in mine]
            title = f"{mine[0].benchmark}, {name}"
            charts[title] = dots(found, None, f"{title}: accuracy of each method, ours and the paper's")
    return charts


def comparison_charts(record: Comparison) -> dict[str, Chart]:
    """A chart per setting that any method answers, by its name."""
    charts = {}
    for setting, name in (("task", "Task given"), ("class", "Task inferred")):
        found = [(row.method, row.found[setting]) for row in record.rows if row.error is None]
        found = [(method, one) for method, one in found if one.ours is not None]
        if found:
            said = f"{record.title}: accuracy after the last task, {name.lower()}, method by method"
            charts[name] = dots(found, record.guessing.get(setting), said)
    return charts


def dots(methods: Sequence[tuple[str, Compared]], guessing: float | None, title: str) -> Chart:
    """A line per method, best first; whiskers are a standard deviation over seeds. Guessing is drawn unless it is far
    below them all."""
    spreads = [one for _, found in methods for one in (found.ours, found.judged, found.paper) if one]
    low = min(one.mean - (one.std or 0.0) for one in spreads)
    if guessing is not None and low - guessing > 100 - low:
        guessing = None
    keys: list[Key] = [("sign 0", OURS, "ours")]
    keys += [("sign 2", PAPER, "the paper's")] if any(found.paper for _, found in methods) else []
    keys += [("line", "expected", "guessing")] if guessing is not None else []
    low = low if guessing is None else min(low, guessing)
    room = (100 - low) * 0.04
    order = sorted(methods, key=lambda one: -one[1].ours.mean if one[1].ours else 1.0)
    left = 7.2 * max(len(short(name, 14)) for name, _ in order) + 16
    reach = max(low - room, 0.0), 100 + room / 2
    chart = Chart(title, reach, (0.0, 1.0), keys, height=ROW * len(order) + 58, left=left)
    marks = [value for value in ticks(*reach, 6) if value <= 100]
    for value in marks:
        chart.line("rule", chart.x(value), chart.top, chart.x(value), chart.base)
    chart.x_axis([(value, tick_label(value)) for value in marks], "accuracy, %")
    if guessing is not None:
        chart.line("expected", chart.x(guessing), chart.top, chart.x(guessing), chart.base)
    for i, (name, found) in enumerate(order):
        y = chart.top + (i + 0.5) * ROW
        chart.label(chart.left - 8, y + 4.5, short(name, 14), "end", "own" if name.startswith("ibpwf") else "")
        chart.line("rule", chart.left, y, chart.right, y)
        for one, at, color, sign in (
            (found.paper, y + 3.2, PAPER, 2),
            (found.judged or found.ours, y - 3.2, OURS, 0),
        ):
            if one is not None:
                ends = max(one.mean - (one.std or 0.0), reach[0]), min(one.mean + (one.std or 0.0), reach[1])
                chart.line(f"line {color}", chart.x(ends[0]), at, chart.x(ends[1]), at)
                chart.sign(sign, chart.x(one.mean), at, 3.6, color)
        tip = f"{name}: {found.ours} %" if found.ours else f"{name}: no answer"
        tip += f", {found.judged} % {found.note}" if found.judged else ""
        tip += f"; the paper {found.paper} % {found.note}".rstrip() if found.paper else ""
        chart.rect("", chart.left, y - ROW / 2, chart.inner_width, ROW, tip)
    return chart


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered, last = sorted(values), len(values) - 1
    return ordered[last // 4], ordered[len(ordered) // 2], ordered[last - last // 4]


def plane(points: Sequence[Sequence[float]], names: Sequence[str], title: str) -> Drawing:
    """Points of several groups on a plane without units; each group's name, or number, stands at its middle."""
    width, left, top = 520.0, min(x for x, _, _ in points), max(y for _, y, _ in points)
    wide, tall = max(x for x, _, _ in points) - left, top - min(y for _, y, _ in points)
    unit = (width - 24) / (max(wide, tall) or 1.0)
    drawing = Drawing(title, width, tall * unit + 28)
    margin = (width - wide * unit) / 2
    placed = [(margin + (x - left) * unit, 12 + (top - y) * unit, int(group)) for x, y, group in points]
    for x, y, group in placed:
        drawing.sign(group // 4, x, y, 3.0, f"s{group % 8}")
    shown = tick_names(names, 60)
    for group, name in enumerate(names):
        mine = [(x, y) for x, y, g in placed if g == group]
        if mine:
            # The box that holds the middle half both ways: whole groups overlap.
            (x1, x, x2), (y1, y, y2) = (_quartiles(values) for values in zip(*mine, strict=True))
            drawing.label(x, y + 5, shown[group], class_="group")
            drawing.rect("", x1 - 4, y1 - 4, x2 - x1 + 8, y2 - y1 + 8, f"{name}: {len(mine)} images")
    return drawing


def outline(histogram: Sequence[int], highest: float) -> list[tuple[float, float]]:
    """One side of a violin, value and half width, from its first input to its last; on a square-root scale, for most
    inputs of a known set share one bin."""
    step, widest = highest / len(histogram), max(histogram) or 1
    filled = [place for place, count in enumerate(histogram) if count] or [0]
    first, last = filled[0], filled[-1]
    halves = [0.42 * (count / widest) ** 0.5 for count in histogram[first : last + 1]]
    middles = [((first + i + 0.5) * step, half) for i, half in enumerate(halves)]
    end = halves[-1] if len(halves) == 1 else 0.5 * halves[-1]  # both ends reach to the edge of their bin
    return [(first * step, halves[0]), *middles, ((last + 1) * step, end)]


def violins(sets: Sequence[Tree], highest: float, axis: str, title: str) -> Chart:
    """How a quantity is distributed in several sets of inputs: a violin each, with its mean, median and quartiles;
    the fullest bin of each is as wide as there is room."""
    there = {one.kind for one in sets}
    keys = [("box", f"dot {color}", words) for kind, (color, words) in KINDS.items() if kind in there]
    chart = Chart(title, (-0.5, len(sets) - 0.5), (0.0, highest * 1.02), keys, bottom=58)
    most = max(int(chart.inner_width / max(len(sets), 1) / 6.5), 3)
    chart.y_axis(axis)
    chart.x_axis([(i, "") for i in range(len(sets))], "test set", 48)
    for i, one in enumerate(sets):
        color, words = KINDS[one.kind]
        head, hyphen, tail = one.name.partition("-") if len(one.name) > most else (one.name, "", "")
        for line, name in enumerate((head + hyphen, tail)):
            chart.label(chart.x(i), chart.base + 17 + 13 * line, short(name, most))
        side = outline(one.histogram, highest)
        both = [(i + half, value) for value, half in side] + [(i - half, value) for value, half in reversed(side)]
        chart.path(f"violin {color}", chart.points(both), closed=True)
        _, low, median, high, _ = one.quantiles
        x, mean = chart.x(i), chart.y(one.mean)
        chart.line("quartiles", x, chart.y(low), x, chart.y(high))
        chart.line("average", x - 9, mean, x + 9, mean)
        chart.add("circle", "median", cx=x, cy=chart.y(median), r=3.2)
        tip = f"{one.name} ({words}): mean {one.mean:.3f}, median {median:.3f}, half of them {low:.3f} to {high:.3f}"
        chart.column_mark(tip, i)
    return chart
