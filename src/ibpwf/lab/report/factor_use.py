"""Factor use per task and layer: reused and new factors as stacked bars, the dictionary, and what the IBP expects."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ibpwf.core.prior import expected_total
from ibpwf.lab.report.accuracy_map import tick_names
from ibpwf.lab.report.chart import Frame, label, legend, mark, svg
from ibpwf.lab.report.markup import Markup, el, number, short
from ibpwf.lab.report.run_record import Use

WIDTH, HEIGHT = 420.0, 260.0


def expectation(alpha: float | None, tasks: int) -> list[float]:
    """α·H_t for t = 1 … tasks: the prior mean of the number of factors that t tasks use together."""
    if alpha is None or alpha <= 0:
        return []
    return [expected_total(alpha, t) for t in range(1, tasks + 1)]


def use_chart(uses: Sequence[Use], names: Sequence[str], alpha: float | None, title: str) -> Markup:
    """One layer."""
    expected = expectation(alpha, len(uses))
    highest = max([use.total for use in uses] + [use.active for use in uses] + expected + [1.0])
    keys = [
        ("box", "reused", "reused"),
        ("box", "new", "new"),
        ("line", "total", "dictionary"),
    ]
    if expected:
        keys.append(("line", "expected", "IBP prior, α·H"))
    key_parts, used = legend(keys, 18, 14, WIDTH - 24)
    frame = Frame(WIDTH, HEIGHT + used, (-0.5, len(uses) - 0.5), (0.0, highest * 1.06), top=used + 12, bottom=60)
    room = frame.inner_width / max(len(uses), 1)
    every = math.ceil(22 / room)
    ticks = tick_names(names[: len(uses)], min(room - 4, 70.0))
    parts = [*key_parts, *frame.y_axis("factors")]
    half = 0.36
    base = frame.y(0)
    for t, use in enumerate(uses):
        left, width = frame.x(t - half), frame.x(t + half) - frame.x(t - half)
        middle, top = frame.y(use.reused), frame.y(use.reused + use.new)
        parts.append(el("rect", class_="reused", x=left, y=middle, width=width, height=base - middle))
        parts.append(el("rect", class_="new", x=left, y=top, width=width, height=middle - top))
    parts += frame.x_axis([(t, short(ticks[t], 10)) for t in range(0, len(uses), every)], "")
    added = [f"+{use.new:.0f}" if use.new >= 10 or room < 40 else f"+{use.new:.3g}" for use in uses]
    roomy = 7.5 * max((len(shown) for shown in added), default=0) <= room
    if roomy:
        parts += [label(frame.x(t), base + 32, shown, "middle", "fresh") for t, shown in enumerate(added)]
    title_at = frame.left + frame.inner_width / 2
    axis = "task, and how many factors it added" if roomy else "task"
    parts.append(label(title_at, base + (50 if roomy else 36), axis, "middle", "axis"))
    if expected:
        parts.append(_line(frame, expected, "expected"))
    totals = [use.total for use in uses]
    parts.append(_line(frame, totals, "total"))
    for t, total in enumerate(totals):
        parts.append(el("circle", class_="total", cx=frame.x(t), cy=frame.y(total), r=2.8))
    for t, use in enumerate(uses):
        tip = (
            f"task {names[t]}: {use.reused:g} reused + {use.new:g} new = {use.active:g} active; "
            f"dictionary {use.total:g}"
        )
        if expected:
            tip += f"; IBP expects {expected[t]:.1f}"
        parts.append(mark(tip, frame.x(t - 0.5), frame.top, room, frame.inner_height, "hit"))
    return svg(frame.width, frame.height, title, parts)


def _line(frame: Frame, values: Sequence[float], class_: str) -> Markup:
    path = " ".join(f"{number(frame.x(t))},{number(frame.y(value))}" for t, value in enumerate(values))
    return el("polyline", class_=class_, points=path)
