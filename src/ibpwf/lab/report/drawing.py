"""SVG figures in units of about one CSS pixel: shapes on a canvas, and charts with two scales, axes and a legend.

Colors are CSS classes (`page.css`), so that one drawing serves light, dark and print; a quantity is the variable
`--v`, 0 (little) to 1 (much). A *mark* is a shape with a tip: what a reader can point at, tap, or reach with the
arrow keys.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

WIDTH = 420.0
SIGNS = {
    1: ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)),
    2: ((0.0, -1.35), (1.35, 0.0), (0.0, 1.35), (-1.35, 0.0)),
    3: ((0.0, -1.2), (1.2, 1.0), (-1.2, 1.0)),
}
# Characters that XML forbids, or that cannot be written as UTF-8 (JSON may hold both).
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Points = Iterable[tuple[float, float]]
Key = tuple[str, str, str]
"""A legend's entry: kind ('box', 'line', 'sign N', or 'series N': the sign on a line), CSS class, label."""


def clean(value: object) -> str:
    """The value as text that HTML and XML can hold."""
    return _FORBIDDEN.sub("\ufffd", str(value))


def short(value: object, most: int) -> str:
    """Text of at most `most` characters; an ellipsis shows what is cut off."""
    whole = clean(value)
    return whole if len(whole) <= most else whole[: max(most - 1, 1)] + "…"


def coordinate(value: float) -> str:
    """At most two decimals, no trailing zeros."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be drawn")
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


def element(tag: str, content: str = "", /, **attributes: float | str) -> str:
    """An SVG element. `class_` stands for class and `text_anchor` for text-anchor; `content` is markup."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else coordinate(value)}"'
        for name, value in attributes.items()
        if value != ""
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, with 2 and 5 times them where there is room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(decades) // 6)
    values = [f * 10.0**d for d in decades if d % every == 0 for f in ((1, 2, 5) if len(decades) <= 3 else (1,))]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def tick_label(value: float) -> str:
    """2000, 0.5, 1e-5."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"


def tick_names(names: Sequence[str], room: float) -> list[str]:
    """Names where all fit, without what they all begin with (`permutation-`) if that helps, else numbers from 1."""
    heads = {name[: name.rfind("-") + 1] for name in names}
    head = heads.pop() if len(heads) == 1 else ""
    for shown in (list(names), [name.removeprefix(head) for name in names]):
        if all(name and len(name) * 7 <= room for name in shown) and len(set(shown)) == len(shown):
            return shown
    return [str(i + 1) for i in range(len(names))]


class Drawing:
    """Shapes on a canvas; `title` describes it to screen readers."""

    def __init__(self, title: str, width: float = WIDTH, height: float = 0.0, *, wide: bool = False) -> None:
        self.title, self.width, self.height, self.wide = title, width, height, wide
        self.shapes: list[str] = []

    def __html__(self) -> str:
        """What a template writes for `{{ drawing }}`."""
        return element(
            "svg",
            "".join(self.shapes),
            viewBox=f"0 0 {self.width:.0f} {self.height:.0f}",
            class_="chart wide" if self.wide else "chart",
            role="img",
            aria_label=html.escape(clean(self.title)),
            tabindex="0",
        )

    def add(self, tag: str, class_: str = "", text: str = "", tip: str = "", **attributes: float | str) -> None:
        """A shape with text in it, or with a tip."""
        content = html.escape(clean(text)) + (f"<title>{html.escape(clean(tip))}</title>" if tip else "")
        self.shapes.append(element(tag, content, class_=class_, **attributes))

    def rect(
        self, class_: str, x: float, y: float, width: float, height: float, tip: str = "", style: str = ""
    ) -> None:
        """A rectangle; with a `tip`, a mark."""
        shape = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
        self.add("rect", f"mark {class_ or 'hit'}" if tip else class_, "", tip, style=style, **shape)

    def cell(self, v: float, x: float, y: float, width: float, height: float, tip: str = "") -> None:
        """A rectangle in the color of a quantity, 0 to 1."""
        self.rect("v", x, y, width, height, tip, f"--v:{min(max(v, 0.0), 1.0):.2f}")

    def line(self, class_: str, x1: float, y1: float, x2: float, y2: float) -> None:
        self.add("line", class_, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, class_: str, points: Points, *, closed: bool = False) -> None:
        shown = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in points)
        self.add("polygon" if closed else "polyline", class_, points=shown)

    def label(self, x: float, y: float, text: str, anchor: str = "middle", class_: str = "") -> None:
        self.add("text", class_, text, x=x, y=y, text_anchor=anchor)

    def upward_label(self, x: float, y: float, text: str) -> None:
        """The title of an upright axis."""
        self.add("text", "axis", text, x=x, y=y, text_anchor="middle", transform=f"rotate(-90 {x:.2f} {y:.2f})")

    def sign(self, number: int, x: float, y: float, size: float, class_: str) -> None:
        """A dot, square, diamond or triangle: series differ without their colors too."""
        if number % 4 == 0:
            self.add("circle", f"dot {class_}", cx=x, cy=y, r=size)
        else:
            self.path(f"dot {class_}", [(x + a * size, y + b * size) for a, b in SIGNS[number % 4]], closed=True)

    def legend(self, keys: Sequence[Key], x: float, y: float, width: float) -> float:
        """Keys in rows that fit `width`; the height used."""
        at, base = x, y
        for kind, class_, shown in keys:
            room = 32 + 7.3 * len(shown)
            if at > x and at + room > x + width:
                at, base = x, base + 18
            what, _, number = kind.partition(" ")
            if what == "box":
                self.rect(class_, at, base - 9, 11, 11)
            elif what != "sign":
                self.line(class_ if what == "line" else f"line {class_}", at - 4, base - 4, at + 13, base - 4)
            if number:
                self.sign(int(number), at + 4.5, base - 4, 4.0, class_)
            self.label(at + 17, base, shown, "start")
            at += room
        return base - y + 18.0

    def color_bar(self, x: float, y: float, width: float, low: str, high: str, title: str = "") -> None:
        """The scale of a quantity with both ends named."""
        for i in range(32):
            self.cell(i / 31, x + i * width / 32, y, width / 32 + 0.3, 9)
        self.label(x, y + 23, low, "start")
        self.label(x + width, y + 23, high, "end")
        self.label(x + width / 2, y + 23, title, class_="axis")


class Chart(Drawing):
    """A drawing with a legend above a framed area and two scales; y grows upward, on a log scale if asked."""

    def __init__(
        self,
        title: str,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        keys: Sequence[Key] = (),
        *,
        height: float = 270.0,
        left: float = 62.0,
        bottom: float = 46.0,
        log_y: bool = False,
    ) -> None:
        super().__init__(title)
        self.x_range, self.y_range, self.log_y = x_range, y_range, log_y
        used = self.legend(keys, 18, 14, WIDTH - 24) if keys else 0.0
        self.height = height + used
        self.left, self.right, self.top, self.base = left, WIDTH - 12, used + 12, self.height - bottom

    @property
    def inner_width(self) -> float:
        return self.right - self.left

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1) * self.inner_width

    def y(self, value: float) -> float:
        low, high = self.y_range
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.base - (value - low) / ((high - low) or 1) * (self.base - self.top)

    def points(self, values: Points) -> list[tuple[float, float]]:
        return [(self.x(x), self.y(y)) for x, y in values]

    def y_axis(self, title: str) -> None:
        """Grid lines, tick labels, and the title upright beside them."""
        for value in log_ticks(*self.y_range) if self.log_y else ticks(*self.y_range, 5):
            self.line("rule", self.left, self.y(value), self.right, self.y(value))
            self.label(self.left - 7, self.y(value) + 4, tick_label(value), "end")
        self.upward_label(13, (self.top + self.base) / 2, title)

    def x_axis(self, marks: Iterable[tuple[float, str]], title: str, below: float = 36) -> None:
        """The base line, tick labels where they do not run into each other, and the title."""
        self.line("base", self.left, self.base, self.right, self.base)
        end = -math.inf
        for value, shown in marks:
            at, half = self.x(value), 3.8 * len(shown)
            if at - half > end:
                self.line("base", at, self.base, at, self.base + 4)
                self.label(at, self.base + 17, shown)
                end = at + half + 4
        self.label((self.left + self.right) / 2, self.base + below, title, class_="axis")

    def column_mark(self, tip: str, at: float) -> None:
        """A mark over the whole height, a unit of x wide."""
        self.rect("", self.x(at - 0.5), self.top, self.x(at + 0.5) - self.x(at - 0.5), self.base - self.top, tip)
