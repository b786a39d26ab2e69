"""How a quantity is distributed in several sets of inputs: a violin each, with its median and quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.report.chart import Frame, label, legend, mark, svg
from ibpwf.lab.report.markup import Markup, el, number, short

WIDTH, HEIGHT = 420.0, 270.0
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
    there = {violin.kind for violin in violins}
    kinds = [kind for kind in KINDS if kind in there]
    keys = [("box", f"dot {KINDS[kind][0]}", KINDS[kind][1]) for kind in kinds]
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    frame = Frame(WIDTH, HEIGHT + used, (-0.5, len(violins) - 0.5), (0.0, highest * 1.02), top=used + 12, bottom=58)
    room = frame.inner_width / max(len(violins), 1)
    parts = [*key_parts, *frame.y_axis(axis), *frame.x_axis([(i, "") for i in range(len(violins))], "")]
    base, middle = frame.top + frame.inner_height, frame.left + frame.inner_width / 2
    for i, violin in enumerate(violins):
        for line, words in enumerate(_lines(violin.name, room)):
            parts.append(label(frame.x(i), base + 17 + 13 * line, words))
    parts.append(label(middle, base + 48, "test set", "middle", "axis"))
    for i, violin in enumerate(violins):
        colour, _ = KINDS[violin.kind]
        parts.append(_body(frame, i, violin, highest, colour))
        _, low, median, high, _ = violin.quantiles
        x = frame.x(i)
        parts.append(el("line", class_="quartiles", x1=x, x2=x, y1=frame.y(low), y2=frame.y(high)))
        parts.append(
            el("line", class_="average", x1=x - 9, x2=x + 9, y1=frame.y(violin.mean), y2=frame.y(violin.mean))
        )
        parts.append(el("circle", class_="median", cx=x, cy=frame.y(median), r=3.2))
        tip = (
            f"{violin.name} ({KINDS[violin.kind][1]}): mean {violin.mean:.3f}, median {median:.3f}, "
            f"half of them {low:.3f} to {high:.3f}"
        )
        parts.append(mark(tip, frame.x(i - 0.5), frame.top, room, frame.inner_height, "hit"))
    return svg(frame.width, frame.height, title, parts)


def _lines(name: str, room: float) -> list[str]:
    """A name on one line, or broken after its first hyphen; cut where it still does not fit."""
    if len(name) * 7 <= room - 2:
        return [name]
    head, hyphen, tail = name.partition("-")
    most = max(int(room / 6.0), 3)
    return [short(head + hyphen, most), *([short(tail, most)] if tail else [])]


def _body(frame: Frame, place: int, violin: Violin, highest: float, colour: str) -> Markup:
    """The mirrored histogram with its corners joined, from its first input to its last; on a square-root scale, for
    most inputs of a known set share one bin."""
    widest = max(violin.histogram) or 1
    step = highest / len(violin.histogram)
    filled = [bin_ for bin_, count in enumerate(violin.histogram) if count]
    first, last = (filled[0], filled[-1]) if filled else (0, 0)
    halves = [0.42 * (count / widest) ** 0.5 for count in violin.histogram[first : last + 1]]
    # Both ends reach to the edge of their bin.
    outline = [(first * step, halves[0])]
    outline += [((first + i + 0.5) * step, half) for i, half in enumerate(halves)]
    outline.append(((last + 1) * step, halves[-1] if len(halves) == 1 else 0.5 * halves[-1]))
    right = [f"{number(frame.x(place + half))},{number(frame.y(value))}" for value, half in outline]
    left = [f"{number(frame.x(place - half))},{number(frame.y(value))}" for value, half in outline]
    return el("polygon", class_=f"violin {colour}", points=" ".join([*right, *reversed(left)]))
