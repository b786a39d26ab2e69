"""The parts every chart is made of: a frame with scales, ticks, grid and axis titles, a legend, a colour bar.

Charts are SVG drawn in units of about one CSS pixel; colours come from classes (see `page.css`), so that one
drawing serves light, dark and print. A `mark` is what a reader can point at, tap or reach with the arrow keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ibpwf.lab.report.colours import LEVELS
from ibpwf.lab.report.markup import Markup, el, text


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, with 2 and 5 times them where there is room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 3 else (1,)
    stride = max(1, len(decades) // 6)
    values = [factor * 10.0**decade for decade in decades if decade % stride == 0 for factor in factors]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def label_of(value: float) -> str:
    """A tick's label: 2000, 0.5, 1e-5."""
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"


@dataclass(frozen=True)
class Frame:
    """The drawing area inside a chart and its two scales; y grows upwards, on a log scale if asked."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 62
    right: float = 12
    top: float = 12
    bottom: float = 46
    log_y: bool = False

    @property
    def inner_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> float:
        return self.height - self.top - self.bottom

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1) * self.inner_width

    def y(self, value: float) -> float:
        low, high = self.y_range
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.top + (1 - (value - low) / ((high - low) or 1)) * self.inner_height

    def y_axis(self, title: str) -> list[Markup]:
        """Grid lines, tick labels and the title, which stands upright beside them."""
        low, high = self.y_range
        parts = []
        for value in log_ticks(low, high) if self.log_y else ticks(low, high, 5):
            at = self.y(value)
            parts.append(el("line", class_="rule", x1=self.left, x2=self.width - self.right, y1=at, y2=at))
            parts.append(label(self.left - 7, at + 4, label_of(value), "end"))
        middle = self.top + self.inner_height / 2
        parts.append(label(13, middle, title, "middle", "axis", turned=True))
        return parts

    def x_axis(self, marks: Sequence[tuple[float, str]], title: str) -> list[Markup]:
        """Tick labels at the given places, the base line and the title."""
        base = self.top + self.inner_height
        parts = [el("line", class_="base", x1=self.left, x2=self.width - self.right, y1=base, y2=base)]
        for value, shown in marks:
            at = self.x(value)
            parts.append(el("line", class_="base", x1=at, x2=at, y1=base, y2=base + 4))
            parts.append(label(at, base + 17, shown))
        parts.append(label(self.left + self.inner_width / 2, base + 36, title, "middle", "axis"))
        return parts


def label(
    x: float, y: float, shown: str, anchor: str = "middle", class_: str | None = None, *, turned: bool = False
) -> Markup:
    """A piece of text; `turned` reads upwards."""
    turn = f"rotate(-90 {x:.2f} {y:.2f})" if turned else None
    return el("text", text(shown), x=x, y=y, text_anchor=anchor, class_=class_, transform=turn)


def mark(tip: str, x: float, y: float, width: float, height: float, class_: str = "") -> Markup:
    """A rectangle that tells its numbers when pointed at; the title serves where scripts do not run."""
    return el(
        "rect",
        el("title", text(tip)),
        class_=f"mark {class_}".strip(),
        x=x,
        y=y,
        width=max(width, 0.0),
        height=max(height, 0.0),
    )


def shape(kind: int, x: float, y: float, size: float, class_: str) -> Markup:
    """A dot, square, diamond or triangle: series differ without their colours too."""
    paths = {
        1: f"M{x - size:.2f} {y - size:.2f}h{2 * size:.2f}v{2 * size:.2f}h{-2 * size:.2f}z",
        2: f"M{x:.2f} {y - 1.35 * size:.2f}l{1.35 * size:.2f} {1.35 * size:.2f}l{-1.35 * size:.2f} "
        f"{1.35 * size:.2f}l{-1.35 * size:.2f} {-1.35 * size:.2f}z",
        3: f"M{x:.2f} {y - 1.2 * size:.2f}l{1.2 * size:.2f} {2.2 * size:.2f}h{-2.4 * size:.2f}z",
    }
    if kind % 4 == 0:
        return el("circle", class_=f"dot {class_}", cx=x, cy=y, r=size)
    return el("path", class_=f"dot {class_}", d=paths[kind % 4])


def legend(entries: Sequence[tuple[str, str, str]], x: float, y: float, width: float) -> tuple[list[Markup], float]:
    """Keys in rows that fit `width`: (kind, class, label) with kind 'box', 'line' or 'shape N', the sign of series N.
    Also the height used."""
    parts: list[Markup] = []
    at, row = x, 0
    for kind, class_, shown in entries:
        room = 32 + 7.3 * len(shown)
        if at > x and at + room > x + width:
            at, row = x, row + 1
        base = y + 18 * row
        if kind == "box":
            parts.append(el("rect", class_=class_, x=at, y=base - 9, width=11, height=11, rx=2))
        elif kind.startswith("shape "):
            parts.append(el("line", class_=f"line {class_}", x1=at - 4, x2=at + 13, y1=base - 4, y2=base - 4))
            parts.append(shape(int(kind.removeprefix("shape ")), at + 4.5, base - 4, 4.0, class_))
        else:
            parts.append(el("line", class_=class_, x1=at - 2, x2=at + 13, y1=base - 4, y2=base - 4))
        parts.append(label(at + 17, base, shown, "start"))
        at += room
    return parts, 18.0 * (row + 1)


def colour_bar(x: float, y: float, width: float, low: str, high: str, title: str) -> list[Markup]:
    """The quantity scale with both ends named."""
    step = width / LEVELS
    parts = [el("rect", class_=f"v{i}", x=x + i * step, y=y, width=step + 0.3, height=9) for i in range(LEVELS)]
    parts.append(label(x, y + 23, low, "start"))
    parts.append(label(x + width, y + 23, high, "end"))
    parts.append(label(x + width / 2, y + 23, title, "middle", "axis"))
    return parts


def svg(width: float, height: float, title: str, parts: Sequence[Markup], *, wide: bool = False) -> Markup:
    """The finished drawing; `title` is what a reader who cannot see it is told."""
    return el(
        "svg",
        *parts,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        class_="chart wide" if wide else "chart",
        role="img",
        aria_label=title,
        tabindex="0",
    )


def figure(drawing: Markup, title: str, caption: Markup, more: Markup | None = None) -> Markup:
    """A drawing with its title above and its caption below; `more` is a table of the same numbers."""
    return el(
        "figure",
        el("p", text(title), class_="figtitle"),
        el("div", drawing, class_="canvas"),
        el("figcaption", caption),
        *([more] if more else []),
    )
