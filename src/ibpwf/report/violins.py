"""How a quantity is distributed in several sets of inputs: a violin each, with its median and quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.report.chart import Frame, legend, mark, svg
from ibpwf.report.markup import Markup, el, number, short

WIDTH, HEIGHT = 420.0, 240.0
KINDS = {"seen": ("s4", "known"), "unseen": ("s1", "not known"), "foreign": ("s6", "of no task")}


@dataclass(frozen=True)
class Violin:
    """A set of inputs: its name, kind, mean, five quantiles (5, 25, 50, 75, 95 %) and a histogram from 0 up."""

    name: str
    kind: str
    mean: float
    quantiles: tuple[float, float, float, float, float]
    histogram: tuple[int, ...]


def violin_chart(violins: Sequence[Violin], highest: float, axis: str, title: str) -> Markup:
    """One panel, the sets side by side; the fullest bin of each is as wide as there is room."""
    kinds = list(dict.fromkeys(violin.kind for violin in violins))
    keys = [("box", f"dot {KINDS[kind][0]}", KINDS[kind][1]) for kind in kinds]
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    frame = Frame(WIDTH, HEIGHT + used, (-0.5, len(violins) - 0.5), (0.0, highest * 1.02), top=used + 12)
    room = frame.inner_width / max(len(violins), 1)
    names = [short(violin.name, 7) if len(violin.name) * 7 > room - 4 else violin.name for violin in violins]
    parts = [*key_parts, *frame.y_axis(axis), *frame.x_axis(list(enumerate(names)), "test set")]
    for i, violin in enumerate(violins):
        colour, _ = KINDS[violin.kind]
        parts.append(_body(frame, i, violin, highest, colour))
        _, low, median, high, _ = violin.quantiles
        x = frame.x(i)
        parts.append(el("line", class_="quartiles", x1=x, x2=x, y1=frame.y(low), y2=frame.y(high)))
        parts.append(el("circle", class_="median", cx=x, cy=frame.y(median), r=3.2))
        tip = (
            f"{violin.name} ({KINDS[violin.kind][1]}): mean {violin.mean:.3f}, median {median:.3f}, "
            f"half of them {low:.3f} to {high:.3f}"
        )
        parts.append(mark(tip, frame.x(i - 0.5), frame.top, room, frame.inner_height, "hit"))
    return svg(frame.width, frame.height, title, parts)


def _body(frame: Frame, place: int, violin: Violin, highest: float, colour: str) -> Markup:
    """Mirrored histogram; on a square-root scale, for most inputs of a known set share one bin."""
    widest = max(violin.histogram) or 1
    step = highest / len(violin.histogram)
    right, left = [], []
    for bin_, count in enumerate(violin.histogram):
        half = 0.42 * (count / widest) ** 0.5
        for edge in (bin_ * step, (bin_ + 1) * step):
            y = number(frame.y(edge))
            right.append(f"{number(frame.x(place + half))},{y}")
            left.append(f"{number(frame.x(place - half))},{y}")
    return el("polygon", class_=f"violin {colour}", points=" ".join([*right, *reversed(left)]))
