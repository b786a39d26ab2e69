"""Figures as data: shapes in units of about one CSS pixel, which `templates/drawing.svg` writes as SVG.

Colors come from classes (see `page.css`), so that one drawing serves light, dark and print. A shape with a `tip` is a
mark: what a reader can point at, tap or reach with the arrow keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ibpwf.lab.report.colors import LEVELS

WIDTH = 420.0
# Characters that XML forbids, or that cannot be written as UTF-8 (JSON may hold both).
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: object) -> str:
    """The value as text that HTML and XML can hold."""
    return _FORBIDDEN.sub("\ufffd", str(value))


def short(value: object, most: int) -> str:
    """Text of at most `most` characters; what is cut off is shown by an ellipsis."""
    whole = clean(value)
    return whole if len(whole) <= most else whole[: max(most - 1, 1)] + "…"


def coordinate(value: float) -> str:
    """At most two decimals, no trailing zeros."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be drawn")
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


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


def tick_label(value: float) -> str:
    """2000, 0.5, 1e-5."""
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"


def tick_names(names: Sequence[str], room: float) -> list[str]:
    """Names where all of them fit, without what they all begin with (`permutation-`) if that helps, or else their
    numbers from 1."""
    heads = {name[: name.rfind("-") + 1] for name in names}
    head = heads.pop() if len(heads) == 1 else ""
    for shown in (list(names), [name.removeprefix(head) for name in names]):
        if all(shown) and all(len(name) * 7 <= room for name in shown) and len(set(shown)) == len(shown):
            return shown
    return [str(i + 1) for i in range(len(names))]


class Shape(NamedTuple):
    """An element of the drawing, what it says, and what it tells when pointed at."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    tip: str = ""
    inner: Sequence[Shape] = ()


class Drawing:
    """Shapes on a canvas; `title` is what a reader who cannot see it is told."""

    def __init__(self, title: str, width: float, height: float, *, wide: bool = False) -> None:
        self.title, self.width, self.height, self.wide = title, width, height, wide
        self.shapes: list[Shape] = []

    def add(self, tag: str, class_: str, text: str = "", tip: str = "", **attributes: float | str) -> None:
        """A shape; `text_anchor` stands for text-anchor."""
        made = {
            key.replace("_", "-"): value if isinstance(value, str) else coordinate(value)
            for key, value in attributes.items()
        }
        self.shapes.append(Shape(tag, {"class": class_, **made} if class_ else made, clean(text), clean(tip)))

    def rect(self, class_: str, x: float, y: float, width: float, height: float) -> None:
        self.add("rect", class_, x=x, y=y, width=width, height=height)

    def mark(self, tip: str, x: float, y: float, width: float, height: float, class_: str = "hit") -> None:
        """A rectangle that tells its numbers when pointed at."""
        self.add("rect", f"mark {class_}", tip=tip, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0))

    def line(self, class_: str, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.add("line", class_, x1=x[0], x2=x[1], y1=y[0], y2=y[1])

    def across(self, class_: str, x: tuple[float, float], y: float) -> None:
        self.line(class_, x, (y, y))

    def upright(self, class_: str, x: float, y: tuple[float, float]) -> None:
        self.line(class_, (x, x), y)

    def path(self, class_: str, points: Iterable[tuple[float, float]], *, closed: bool = False) -> None:
        shown = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in points)
        self.add("polygon" if closed else "polyline", class_, points=shown)

    def label(self, x: float, y: float, text: str, anchor: str = "middle", class_: str = "") -> None:
        self.add("text", class_, text, x=x, y=y, text_anchor=anchor)

    def upward_label(self, x: float, y: float, text: str) -> None:
        """The title of an upright axis."""
        turn = f"rotate(-90 {x:.2f} {y:.2f})"
        self.add("text", "axis", text, x=x, y=y, text_anchor="middle", transform=turn)

    def sign(self, number: int, x: float, y: float, size: float, class_: str) -> None:
        """A dot, square, diamond or triangle: series differ without their colors too."""
        if number % 4 == 0:
            self.add("circle", f"dot {class_}", cx=x, cy=y, r=size)
            return
        corners = {
            1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
            2: ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
            3: ((0, -1.2), (1.2, 1), (-1.2, 1)),
        }[number % 4]
        at = "L".join(f"{coordinate(x + a * size)} {coordinate(y + b * size)}" for a, b in corners)
        self.add("path", f"dot {class_}", d=f"M{at}z")

    def legend(self, keys: Sequence[tuple[str, str, str]], x: float, y: float, width: float) -> float:
        """Keys in rows that fit `width`: (kind, class, label) with kind 'box', 'line', 'sign N', or 'series N': the
        sign on a line. Returns the height used."""
        at, row = x, 0
        for kind, class_, shown in keys:
            room = 32 + 7.3 * len(shown)
            if at > x and at + room > x + width:
                at, row = x, row + 1
            base = y + 18 * row
            what, _, number = kind.partition(" ")
            if what == "box":
                self.add("rect", class_, x=at, y=base - 9, width=11, height=11, rx=2)
            if what == "line":
                self.across(class_, (at - 2, at + 13), base - 4)
            if what == "series":
                self.across(f"line {class_}", (at - 4, at + 13), base - 4)
            if number:
                self.sign(int(number), at + 4.5, base - 4, 4.0, class_)
            self.label(at + 17, base, shown, "start")
            at += room
        return 18.0 * (row + 1)

    def color_bar(self, x: float, y: float, width: float, low: str, high: str, title: str) -> None:
        """The quantity scale with both ends named."""
        step = width / LEVELS
        for i in range(LEVELS):
            self.rect(f"v{i}", x + i * step, y, step + 0.3, 9)
        self.label(x, y + 23, low, "start")
        self.label(x + width, y + 23, high, "end")
        self.label(x + width / 2, y + 23, title, "middle", "axis")


class Chart(Drawing):
    """A drawing with a legend above a framed area and two scales; y grows upwards, on a log scale if asked."""

    def __init__(
        self,
        title: str,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        keys: Sequence[tuple[str, str, str]] = (),
        *,
        height: float = 270.0,
        left: float = 62.0,
        bottom: float = 46.0,
        log_y: bool = False,
    ) -> None:
        super().__init__(title, WIDTH, height)
        self.x_range, self.y_range, self.log_y = x_range, y_range, log_y
        used = self.legend(keys, 18, 14, WIDTH - 24) if keys else 0.0
        self.height += used
        self.left, self.right, self.top, self.base = left, WIDTH - 12, used + 12, self.height - bottom
        self.inner_width, self.inner_height = self.right - self.left, self.base - self.top

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1) * self.inner_width

    def y(self, value: float) -> float:
        low, high = self.y_range
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.top + (1 - (value - low) / ((high - low) or 1)) * self.inner_height

    def points(self, values: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(self.x(x), self.y(y)) for x, y in values]

    def y_axis(self, title: str) -> None:
        """Grid lines, tick labels and the title, which stands upright beside them."""
        for value in log_ticks(*self.y_range) if self.log_y else ticks(*self.y_range, 5):
            at = self.y(value)
            self.across("rule", (self.left, self.right), at)
            self.label(self.left - 7, at + 4, tick_label(value), "end")
        self.upward_label(13, self.top + self.inner_height / 2, title)

    def x_axis(self, marks: Iterable[tuple[float, str]], title: str, below: float = 36) -> None:
        """Tick labels at the given places, the base line and the title."""
        self.across("base", (self.left, self.right), self.base)
        for value, shown in marks:
            at = self.x(value)
            self.upright("base", at, (self.base, self.base + 4))
            if shown:
                self.label(at, self.base + 17, shown)
        self.label(self.left + self.inner_width / 2, self.base + below, title, "middle", "axis")

    def column_mark(self, tip: str, at: float) -> None:
        """A mark over the whole height, a unit of x wide."""
        self.mark(tip, self.x(at - 0.5), self.top, self.x(at + 0.5) - self.x(at - 0.5), self.inner_height)
