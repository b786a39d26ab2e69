"""The figures of one run: accuracy maps, learning curves, factor use, factor scores, entropies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ibpwf.factors.sticks import expected_total
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.report.colors import level
from ibpwf.lab.report.drawing import WIDTH, Chart, Drawing, short, tick_label, tick_names, ticks
from ibpwf.lab.report.records import Epoch, Use
from ibpwf.lab.report.run_record import Run, Scores

MOST_NUMBERED = 12  # with more tasks than this, the cells of a map are too small for numbers
MOST_SEED_LINES = 20
MOST_MARKS = 30_000  # beyond this, cells are drawn without their numbers: the page would become too heavy
NARROWEST = 2  # points that a color scale spans at least, so that noise is not made to look like change
MAP_WIDTH = 1000.0


def cell_text(value: float) -> str:
    """97.2, and 100 instead of 100.0."""
    return "100" if value >= 99.95 else f"{value:.1f}"


def color_range(matrix: Matrix) -> tuple[int, int]:
    """Whole percentages from the lowest to the highest value of one map: differences show, wherever they lie."""
    known = [value for row in matrix for value in row if value is not None] or [0.0, 100.0]
    low, high = math.floor(min(known)), math.ceil(max(known))
    return min(low, high - NARROWEST), high


def accuracy_map(matrix: Matrix, names: Sequence[str], title: str) -> Drawing:
    """The accuracy matrix: rows are moments (after task i), columns are tasks."""
    size, top = len(matrix), 10.0
    cell = min((WIDTH - 72) / max(size, 1), 62.0)
    side = cell * size
    left = (WIDTH - side + 52) / 2
    low, high = color_range(matrix)
    labels = [short(tick, 8) for tick in tick_names(names, cell - 4)]
    drawing = Drawing(title, WIDTH, top + side + 98)
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            if value is None:
                continue
            x, y, step = left + j * cell, top + i * cell, level(value, low, high)
            tip = f"task {names[j]} after learning task {names[i]}: {value:.2f} %"
            drawing.mark(tip, x + 1, y + 1, cell - 2, cell - 2, f"v{step}")
            if size <= MOST_NUMBERED:
                drawing.label(x + cell / 2, y + cell / 2 + 4.5, cell_text(value), class_=f"cell w{step}")
    for i in range(0, size, math.ceil(size / 20)):
        drawing.label(left - 8, top + (i + 0.5) * cell + 4.5, labels[i], "end")
        drawing.label(left + (i + 0.5) * cell, top + side + 17, labels[i])
    drawing.label(left + side / 2, top + side + 36, "accuracy on task", class_="axis")
    drawing.upward_label(left - 18 - 7 * max(map(len, labels), default=1), top + side / 2, "after learning task")
    bar = min(side, 280.0)
    middle = left + side / 2
    drawing.color_bar(middle - bar / 2, top + side + 52, bar, f"{low} %", f"{high} %", "")
    drawing.label(min(middle, WIDTH - 132), top + side + 91, "colors: lowest to highest of this map", class_="axis")
    return drawing


@dataclass(frozen=True)
class Step:
    """One epoch on the common axis of all tasks and phases, with the values of the seeds that have it."""

    at: int
    task: int
    phase: str
    epoch: int
    values: dict[int, Epoch]


def steps(epochs: Sequence[Epoch]) -> list[Step]:
    """Epochs in order: by task, by phase as the phases first appear, by number."""
    phases: dict[tuple[int, str], int] = {}
    table: dict[tuple[int, int, int], dict[int, Epoch]] = {}
    for epoch in epochs:
        rank = phases.setdefault((epoch.task, epoch.phase), len(phases))
        table.setdefault((epoch.task, rank, epoch.epoch), {})[epoch.seed] = epoch
    found = []
    for at, key in enumerate(sorted(table)):
        first = next(iter(table[key].values()))
        found.append(Step(at, first.task, first.phase, first.epoch, table[key]))
    return found


def _curve_range(values: list[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if not log:
        low = min(low, 0.0)
        return low, high + (high - low) * 0.06 or 1.0
    low, high = low / 1.15, high * 1.15
    if high / low < 4:
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    return low, high


def curve(run: Run, part: str, axis: str, title: str) -> Chart | None:
    """`part` (loss or extra) of every epoch, task after task. Phases in which the KL is 0 throughout are left out."""
    shown = steps(run.epochs)
    if part == "extra":
        alive = {step.phase for step in shown if any(epoch.extra for epoch in step.values.values())}
        shown = [replace(step, at=at) for at, step in enumerate(s for s in shown if s.phase in alive)]
    everything = [float(getattr(epoch, part)) for step in shown for epoch in step.values.values()]
    if not everything:
        return None
    seeds = run.about.seeds
    log = part == "loss" and min(everything) > 0 and max(everything) / min(everything) > 20
    keys = [("line", "mean", "mean over seeds" if len(seeds) > 1 else f"seed {seeds[0]}")]
    keys += [("line", "seed", "each seed")] if len(seeds) > 1 else []
    keys += [("box", "band key", "fine-tuning")] if any(step.phase == "finetune" for step in shown) else []
    chart = Chart(title, (-0.5, len(shown) - 0.5), _curve_range(everything, log), keys, log_y=log)
    _bands(chart, shown)
    chart.y_axis(axis + (", log" if log else ""))
    chart.x_axis(_task_ticks(run, shown, chart.inner_width), f"task ({len(shown)} epochs in all)")
    for seed in seeds if 1 < len(seeds) <= MOST_SEED_LINES else []:
        _lines(chart, [(s, float(getattr(s.values[seed], part))) for s in shown if seed in s.values], "seed")
    means = [(step, statistics.fmean(getattr(e, part) for e in step.values.values())) for step in shown]
    _lines(chart, means, "mean")
    for step, value in means:
        of = f" (mean of {len(step.values)} seeds)" if len(step.values) > 1 else ""
        chart.column_mark(
            f"task {run.task_name(step.task)}, {step.phase} epoch {step.epoch}: {value:.4g}{of}", step.at
        )
    return chart


def _lines(chart: Chart, values: Sequence[tuple[Step, float]], class_: str) -> None:
    """A line per task, broken where the next task starts; a single point is drawn as a short dash."""
    for _, group in itertools.groupby(values, key=lambda pair: pair[0].task):
        here = [(float(step.at), value) for step, value in group]
        if len(here) == 1:
            here = [(here[0][0] - 0.2, here[0][1]), (here[0][0] + 0.2, here[0][1])]
        chart.path(class_, chart.points(here))


def _bands(chart: Chart, shown: Sequence[Step]) -> None:
    """Fine-tuning shaded, and a line where a new task starts."""
    for step in shown:
        if step.phase == "finetune":
            left, right = chart.x(step.at - 0.5), chart.x(step.at + 0.5)
            chart.rect("band", left, chart.top, right - left + 0.2, chart.inner_height)
    for before, after in itertools.pairwise(shown):
        if before.task != after.task:
            chart.upright("split", chart.x(after.at - 0.5), (chart.top, chart.base))


def _task_ticks(run: Run, shown: Sequence[Step], width: float) -> list[tuple[float, str]]:
    """A label in the middle of every task: its name where names fit, its number otherwise."""
    tasks = list(dict.fromkeys(step.task for step in shown))
    names = [run.task_name(task) for task in tasks]
    if any(len(name) * 7 > width / len(tasks) for name in names):
        names = [str(task + 1) for task in tasks]
    middles = [statistics.fmean(step.at for step in shown if step.task == task) for task in tasks]
    every = math.ceil(len(tasks) * 22 / width)
    return [(at, short(name, 12)) for at, name in zip(middles, names, strict=True)][::every]


def expectation(alpha: float | None, tasks: int) -> list[float]:
    """α·H_t for t = 1 … tasks: the prior mean of the number of factors that t tasks use together."""
    if alpha is None or alpha <= 0:
        return []
    return [expected_total(alpha, t) for t in range(1, tasks + 1)]


def use_chart(uses: Sequence[Use], names: Sequence[str], alpha: float | None, title: str) -> Chart:
    """One layer: reused and new factors as stacked bars, the dictionary, and what the IBP expects."""
    expected = expectation(alpha, len(uses))
    highest = max([use.total for use in uses] + [use.active for use in uses] + expected + [1.0])
    keys = [("box", "reused", "reused"), ("box", "new", "new"), ("line", "total", "dictionary")]
    keys += [("line", "expected", "IBP prior, α·H")] if expected else []
    chart = Chart(title, (-0.5, len(uses) - 0.5), (0.0, highest * 1.06), keys, height=260, bottom=60)
    room = chart.inner_width / max(len(uses), 1)
    labels = tick_names(names[: len(uses)], min(room - 4, 70.0))
    added = [f"+{use.new:.0f}" if use.new >= 10 or room < 40 else f"+{use.new:.3g}" for use in uses]
    roomy = 7.5 * max(map(len, added), default=0) <= room
    chart.y_axis("factors")
    for t, use in enumerate(uses):
        left, width = chart.x(t - 0.36), chart.x(t + 0.36) - chart.x(t - 0.36)
        middle, top = chart.y(use.reused), chart.y(use.reused + use.new)
        chart.rect("reused", left, middle, width, chart.base - middle)
        chart.rect("new", left, top, width, middle - top)
        if roomy:
            chart.label(chart.x(t), chart.base + 32, added[t], class_="fresh")
    marks = [(t, short(labels[t], 10)) for t in range(0, len(uses), math.ceil(22 / room))]
    axis = "task, and how many factors it added" if roomy else "task"
    chart.x_axis(marks, axis, 50 if roomy else 36)
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
    columns, rows = max(scores.width, 1), len(scores.rows)
    left = 34.0 + 7 * max((len(short(name, 16)) for name in names), default=1)
    right, top, high = MAP_WIDTH - 96.0, 28.0, strongest(scores)
    height = min(max(220.0 / max(rows, 1), 10.0), 34.0)
    cell, bottom = (right - left) / columns, top + height * rows
    titled = sum(value is not None for row in scores.rows for value in row) <= MOST_MARKS
    drawing = Drawing(title, MAP_WIDTH, bottom + 82, wide=True)
    for t, row in enumerate(scores.rows):
        y = top + t * height
        drawing.rect("empty", left, y + 1, cell * columns, height - 2)
        for k, value in enumerate(row):
            if value is None:
                continue
            class_ = f"v{level(abs(value), 0.0, high)}"
            if titled:
                kind = "new" if k in scores.new[t] else "reused"
                tip = f"task {names[t]}, factor {k + 1}: λ = {value:.3g}, {kind}"
                drawing.mark(tip, left + k * cell, y + 1, cell + 0.05, height - 2, class_)
            else:
                drawing.rect(class_, left + k * cell, y + 1, cell, height - 2)
        for k in sorted(scores.new[t]):
            drawing.rect("new", left + k * cell, y + height - 5, max(cell, 1.2), 4)
        used = sum(value is not None for value in row)
        drawing.label(left - 8, y + height / 2 + 4.5, short(names[t], 16), "end")
        drawing.label(right + 8, y + height / 2 + 4.5, f"{used}, {len(scores.new[t])} new", "start")
    for value in (tick for tick in ticks(1, columns, 10) if tick >= 1):
        x = left + (value - 0.5) * cell
        drawing.upright("base", x, (bottom, bottom + 4))
        drawing.label(x, bottom + 17, tick_label(value))
    drawing.label(left + cell * columns / 2, bottom + 36, "factor, in stick order", class_="axis")
    drawing.upward_label(13, (top + bottom) / 2, "task")
    drawing.label(right + 8, top - 8, "factors used", "start", "axis")
    drawing.legend([("box", "empty", "not used"), ("box", "new", "opened by this task")], left, top - 10, 400)
    drawing.color_bar(left, bottom + 52, 240, "0", f"≥ {high:g}", "strength |λ|")
    return drawing


def entropy_chart(entropies: Sequence[Sequence[float]], names: Sequence[str], title: str) -> Chart:
    """A column per moment: a dot for each learnt test set, a diamond for each other, a bar at the mean of either."""
    keys = [("box", "dot s4", "task learnt"), ("box", "dot s1", "task to come")]
    highest = max((value for row in entropies for value in row), default=0.0) or 1.0
    chart = Chart(title, (-0.5, len(entropies) - 0.5), (0.0, highest * 1.06), keys, height=260)
    room = chart.inner_width / max(len(entropies), 1)
    labels = tick_names(names[: len(entropies)], room - 4)
    chart.y_axis("mean entropy, nats")
    marks = [(t, short(labels[t], 10)) for t in range(0, len(entropies), math.ceil(22 / room))]
    chart.x_axis(marks, "after learning task")
    reach, told = room * 0.15, []
    for t, row in enumerate(entropies):
        numbered = list(enumerate(row))
        for color, sign, side, words, part in (
            ("s4", 0, -0.2, "learnt", numbered[: t + 1]),
            ("s1", 2, 0.2, "to come", numbered[t + 1 :]),
        ):
            x = chart.x(t + side)
            if part:
                mean = chart.y(statistics.fmean(value for _, value in part))
                chart.across(f"line {color}", (x - reach, x + reach), mean)
            for task, value in part:
                chart.sign(sign, x, chart.y(value), min(4.0, room * 0.16), color)
                tip = f"after task {names[t]}: test set {names[task]} ({words}), entropy {value:.3f} nats"
                told.append((tip, x - reach, chart.y(value) - 5, 2 * reach, 10.0))
    for mark in told:  # above everything else
        chart.mark(*mark)
    return chart
