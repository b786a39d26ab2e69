"""The accuracy matrix as a heat map: rows are moments (after task i), columns are tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.report.chart import colour_bar, label, mark, svg
from ibpwf.lab.report.colours import level
from ibpwf.lab.report.markup import Markup, short

WIDTH = 420.0
MOST_NUMBERED = 12  # with more tasks than this, the cells are too small for numbers


def tick_names(names: Sequence[str], room: float) -> list[str]:
    """Task names where all of them fit, without what they all begin with (`permutation-`) if that helps, or else
    their numbers from 1."""
    heads = {name[: name.rfind("-") + 1] for name in names}
    head = heads.pop() if len(heads) == 1 else ""
    for shown in (list(names), [name.removeprefix(head) for name in names]):
        if all(shown) and all(len(name) * 7 <= room for name in shown) and len(set(shown)) == len(shown):
            return shown
    return [str(i + 1) for i in range(len(names))]


def cell_text(value: float) -> str:
    """97.2, and 100 instead of 100.0."""
    return "100" if value >= 99.95 else f"{value:.1f}"


def accuracy_map(matrix: Matrix, names: Sequence[str], chance: float | None, title: str) -> Markup:
    """One matrix. The colours run from chance (or 0) to 100 %, so that noise is not made to look like change."""
    size = len(matrix)
    left, top = 62.0, 10.0
    cell = (WIDTH - left - 10) / max(size, 1)
    cell = min(cell, 62.0)
    side = cell * size
    left = (WIDTH - side + left - 10) / 2
    low = math.floor(chance) if chance is not None else 0
    ticks = tick_names(names, cell - 4)
    every = math.ceil(size / 20)
    parts: list[Markup] = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            x, y = left + j * cell, top + i * cell
            if value is None:
                continue
            step = level(value, low, 100.0)
            tip = f"task {names[j]} after learning task {names[i]}: {value:.2f} %"
            parts.append(mark(tip, x + 1, y + 1, cell - 2, cell - 2, f"v{step}"))
            if size <= MOST_NUMBERED:
                parts.append(label(x + cell / 2, y + cell / 2 + 4.5, cell_text(value), "middle", f"cell w{step}"))
        if i % every == 0:
            parts.append(label(left - 8, top + (i + 0.5) * cell + 4.5, short(ticks[i], 8), "end"))
            parts.append(label(left + (i + 0.5) * cell, top + side + 17, short(ticks[i], 8)))
    parts.append(label(left + side / 2, top + side + 36, "accuracy on task", "middle", "axis"))
    widest = max((len(short(tick, 8)) for tick in ticks), default=1)
    parts.append(label(left - 18 - 7 * widest, top + side / 2, "after learning task", "middle", "axis", turned=True))
    start = "guessing" if chance is not None else "0 %"
    bar = min(side, 280.0)
    parts += colour_bar(
        left + (side - bar) / 2, top + side + 52, bar, f"{start}, {low} %" if low else "0 %", "100 %", ""
    )
    return svg(WIDTH, top + side + 82, title, parts)
