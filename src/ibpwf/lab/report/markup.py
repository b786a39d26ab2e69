"""HTML and SVG as typed text: nothing becomes markup without having been escaped.

`Markup` is a type of its own, so mypy refuses plain text where markup is wanted.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
EMPTY = Markup("")

_LEAVES = {"rect", "line", "path", "circle", "polyline", "meta", "br", "wbr", "stop", "polygon", "img"}
# Characters that XML forbids, or that cannot be written as UTF-8 (JSON may hold both).
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: object) -> str:
    """The value as text that HTML and XML can hold."""
    return _FORBIDDEN.sub("\ufffd", str(value))


def text(value: object) -> Markup:
    """The value as escaped text."""
    return Markup(escape(clean(value), quote=False))


def join(parts: list[Markup] | tuple[Markup, ...], between: str = "") -> Markup:
    return Markup(between.join(parts))


def number(value: float) -> str:
    """A coordinate: at most two decimals, no trailing zeros."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be drawn")
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


def el(tag: str, *children: Markup, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` stands for class, `aria_label` for aria-label; None and False leave one out."""
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        name = key.rstrip("_") if key.endswith("_") else key.replace("_", "-")
        if value is True:
            shown.append(f' {name}=""')
            continue
        raw = number(value) if isinstance(value, float | int) else clean(value)
        shown.append(f' {name}="{escape(raw, quote=True)}"')
    head = f"<{tag}{''.join(shown)}"
    if tag in _LEAVES and not children:
        return Markup(f"{head}/>")
    return Markup(f"{head}>{''.join(children)}</{tag}>")


def short(value: object, most: int) -> str:
    """Text of at most `most` characters; what is cut off is shown by an ellipsis."""
    whole = clean(value)
    return whole if len(whole) <= most else whole[: max(most - 1, 1)] + "…"


def exact(value: float, shown: str) -> Markup:
    """A number as shown, with the full value of the record in the element."""
    return Markup(f'<data value="{escape(repr(value), quote=True)}">{escape(shown, quote=False)}</data>')


def table(head: list[Markup], rows: list[list[Markup]], caption: str, numeric: bool = True) -> Markup:
    """A table with a caption, column heads and row heads (the first cell of every row)."""
    heads = [el("th", cell, scope="col") for cell in head]
    body = []
    for first, *rest in rows:
        cells = [el("td", cell, class_="n" if numeric else None) for cell in rest]
        body.append(el("tr", el("th", first, scope="row"), *cells))
    inner = el(
        "table",
        el("caption", text(caption)),
        el("thead", el("tr", *heads)),
        el("tbody", *body),
    )
    return el("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
