"""Factor scores λ_t = r_t ⊙ b_t of one layer: a row per task, a column per factor in stick order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ibpwf.lab.report.chart import colour_bar, label, label_of, legend, mark, svg, ticks
from ibpwf.lab.report.colours import level
from ibpwf.lab.report.markup import Markup, el, short
from ibpwf.lab.report.run_record import Scores

WIDTH = 1000.0
MOST_MARKS = 30_000  # beyond this, cells are drawn without their numbers: the page would become too heavy


def largest(scores: Scores) -> float:
    """The upper end of the colour scale: a round number that few strengths exceed (99th percentile)."""
    sizes = sorted(abs(value) for row in scores.rows for value in row if value is not None)
    if not sizes:
        return 1.0
    high = sizes[min(len(sizes) - 1, math.ceil(0.99 * len(sizes)) - 1)]
    if high <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(high))
    return float(math.ceil(high / unit * 2) / 2 * unit)


def score_map(scores: Scores, names: Sequence[str], title: str) -> Markup:
    """The map: empty where a task does not use a factor, a mark under the factors that the task opened."""
    columns, rows = max(scores.width, 1), len(scores.rows)
    widest = max((len(short(name, 16)) for name in names), default=1)
    left, right, top = 34.0 + 7 * widest, 96.0, 28.0
    height = min(max(220.0 / max(rows, 1), 10.0), 34.0)
    cell = (WIDTH - left - right) / columns
    bottom = top + height * rows
    high = largest(scores)
    titled = sum(value is not None for row in scores.rows for value in row) <= MOST_MARKS
    parts: list[Markup] = []
    for t, row in enumerate(scores.rows):
        y = top + t * height
        parts.append(el("rect", class_="empty", x=left, y=y + 1, width=cell * columns, height=height - 2))
        for k, value in enumerate(row):
            if value is None:
                continue
            step, opened = level(abs(value), 0.0, high), k in scores.new[t]
            x, shown = left + k * cell, f"v{step}"
            if titled:
                tip = f"task {names[t]}, factor {k + 1}: λ = {value:.3g}, {'new' if opened else 'reused'}"
                parts.append(mark(tip, x, y + 1, cell + 0.05, height - 2, shown))
            else:
                parts.append(el("rect", class_=shown, x=x, y=y + 1, width=cell, height=height - 2))
        for k in sorted(scores.new[t]):
            parts.append(
                el("rect", class_="new", x=left + k * cell, y=y + height - 5, width=max(cell, 1.2), height=4)
            )
        used = sum(value is not None for value in row)
        parts.append(label(left - 8, y + height / 2 + 4.5, short(names[t], 16), "end"))
        parts.append(label(WIDTH - right + 8, y + height / 2 + 4.5, f"{used}, {len(scores.new[t])} new", "start"))
    for value in ticks(1, columns, 10):
        if value >= 1:
            x = left + (value - 0.5) * cell
            parts.append(el("line", class_="base", x1=x, x2=x, y1=bottom, y2=bottom + 4))
            parts.append(label(x, bottom + 17, label_of(value)))
    middle = left + cell * columns / 2
    parts.append(label(middle, bottom + 36, "factor, in stick order", "middle", "axis"))
    parts.append(label(13, (top + bottom) / 2, "task", "middle", "axis", turned=True))
    parts.append(label(WIDTH - right + 8, top - 8, "factors used", "start", "axis"))
    key, _ = legend([("box", "empty", "not used"), ("box", "new", "opened by this task")], left, top - 10, 400)
    parts += key
    parts += colour_bar(left, bottom + 52, 240, "0", f"≥ {high:g}", "strength |λ|")
    return svg(WIDTH, bottom + 82, title, parts, wide=True)
