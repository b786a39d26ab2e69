"""Methods side by side: a line per method, our mean and spread beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.report.chart import Frame, label, label_of, legend, mark, shape, svg, ticks
from ibpwf.lab.report.markup import Markup, el, short
from ibpwf.lab.report.run_record import Spread

WIDTH, ROW = 420.0, 22.0
LONGEST = 14
KEYS = 18.0
OURS, PAPER = "s4", "s1"


@dataclass(frozen=True)
class Compare:
    """One line: a method's accuracy here and in the paper, in percent. `judged` is ours where the paper's is of fewer
    tasks."""

    name: str
    ours: Spread | None
    paper: Spread | None = None
    note: str = ""
    judged: Spread | None = None


def plot_height(lines: int) -> float:
    return KEYS + 12 + ROW * lines + 46


def dot_plot(lines: Sequence[Compare], guessing: float | None, title: str) -> Markup:
    """Best first; whiskers are a standard deviation over seeds. Guessing is drawn unless it is far below them all."""
    spreads = [one for line in lines for one in (line.ours, line.judged, line.paper) if one]
    low = min(one.mean - (one.std or 0.0) for one in spreads)
    if guessing is not None and low - guessing > 100 - low:
        guessing = None
    order = sorted(lines, key=lambda line: -line.ours.mean if line.ours else 1.0)
    keys = [("dot", OURS, "ours")]
    if any(line.paper for line in order):
        keys.append(("diamond", PAPER, "the paper's"))
    if guessing is not None:
        keys.append(("line", "expected", "guessing"))
    parts, _ = legend([key for key in keys if key[0] == "line"], 18 + 170, 14, WIDTH)
    for i, (kind, colour, words) in enumerate(key for key in keys if key[0] != "line"):
        x = 22.0 + 70 * i
        parts.append(shape(0 if kind == "dot" else 2, x, 10, 4.5, colour))
        parts.append(label(x + 11, 14, words, "start"))
    low = low if guessing is None else min(low, guessing)
    width = 7.2 * max((len(short(line.name, LONGEST)) for line in order), default=4)
    height = plot_height(len(order))
    room = (100 - low) * 0.04
    frame = Frame(WIDTH, height, (max(low - room, 0.0), 100 + room / 2), (0.0, 1.0), left=width + 16, top=KEYS + 12)
    top, base = frame.top, frame.top + frame.inner_height
    marks = [value for value in ticks(*frame.x_range, 6) if value <= 100]
    parts += [el("line", class_="rule", x1=frame.x(v), x2=frame.x(v), y1=top, y2=base) for v in marks]
    parts += frame.x_axis([(value, label_of(value)) for value in marks], "accuracy, %")
    if guessing is not None:
        x = frame.x(guessing)
        parts.append(el("line", class_="expected", x1=x, x2=x, y1=top, y2=base))
    hits = []
    for i, line in enumerate(order):
        y = top + (i + 0.5) * ROW
        own = "own" if line.name.startswith("ibpwf") else None
        parts.append(label(frame.left - 8, y + 4.5, short(line.name, LONGEST), "end", own))
        parts.append(el("line", class_="rule", x1=frame.left, x2=WIDTH - frame.right, y1=y, y2=y))
        parts += _whisker(frame, y + 3.2, line.paper, PAPER, 2)
        parts += _whisker(frame, y - 3.2, line.judged or line.ours, OURS, 0)
        hits.append(mark(_tip(line), frame.left, y - ROW / 2, frame.inner_width, ROW, "hit"))
    return svg(WIDTH, height, title, [*parts, *hits])


def _whisker(frame: Frame, y: float, value: Spread | None, colour: str, kind: int) -> list[Markup]:
    if value is None:
        return []
    parts = []
    if value.std:
        low, high = (
            frame.x(max(value.mean - value.std, frame.x_range[0])),
            frame.x(min(value.mean + value.std, frame.x_range[1])),
        )
        parts.append(el("line", class_=f"line {colour}", x1=low, x2=high, y1=y, y2=y))
    return [*parts, shape(kind, frame.x(value.mean), y, 3.6, colour)]


def _tip(line: Compare) -> str:
    ours = f"{line.ours.shown()} %" if line.ours else "no answer"
    tip = f"{line.name}: {ours}"
    if line.judged:
        tip += f", {line.judged.shown()} % {line.note}"
    return f"{tip}; the paper {line.paper.shown()} % {line.note}".rstrip() if line.paper else tip
