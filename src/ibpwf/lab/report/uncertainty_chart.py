"""Entropy of every task's test set after every task: learnt sets beside those still to come."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ibpwf.lab.report.accuracy_map import tick_names
from ibpwf.lab.report.chart import Frame, legend, mark, shape, svg
from ibpwf.lab.report.markup import Markup, el, short
from ibpwf.lab.report.violins import KINDS

WIDTH, HEIGHT = 420.0, 260.0
SEEN, UNSEEN = "seen", "unseen"
WORDS = {SEEN: "learnt", UNSEEN: "to come"}


def entropy_chart(entropies: Sequence[Sequence[float]], names: Sequence[str], title: str) -> Markup:
    """A column per moment: a dot for each learnt test set, a diamond for each other, a bar at the mean of either."""
    keys = [("box", f"dot {KINDS[kind][0]}", f"task {words}") for kind, words in WORDS.items()]
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    highest = max((value for row in entropies for value in row), default=0.0) or 1.0
    frame = Frame(WIDTH, HEIGHT + used, (-0.5, len(entropies) - 0.5), (0.0, highest * 1.06), top=used + 12)
    room = frame.inner_width / max(len(entropies), 1)
    ticks = tick_names(names[: len(entropies)], room - 4)
    every = math.ceil(22 / room)
    parts = [*key_parts, *frame.y_axis("mean entropy, nats")]
    parts += frame.x_axis([(t, short(ticks[t], 10)) for t in range(0, len(entropies), every)], "after learning task")
    marks = []
    for t, row in enumerate(entropies):
        for kind, place, values in ((SEEN, -0.2, row[: t + 1]), (UNSEEN, 0.2, row[t + 1 :])):
            if not values:
                continue
            colour = KINDS[kind][0]
            x, mean = frame.x(t + place), frame.y(sum(values) / len(values))
            reach = room * 0.15
            parts.append(el("line", class_=f"line {colour}", x1=x - reach, x2=x + reach, y1=mean, y2=mean))
            size = min(4.0, room * 0.16)
            parts += [shape(0 if kind == SEEN else 2, x, frame.y(value), size, colour) for value in values]
            first = 0 if kind == SEEN else t + 1
            for number, value in enumerate(values, start=first):
                tip = f"after task {names[t]}: test set {names[number]} ({WORDS[kind]}), entropy {value:.3f} nats"
                marks.append(mark(tip, x - reach, frame.y(value) - 5, 2 * reach, 10, "hit"))
    return svg(frame.width, frame.height, title, [*parts, *marks])
