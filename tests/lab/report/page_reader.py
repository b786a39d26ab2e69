"""What a reader of the page sees: its text, tables, figures and links, taken apart with the standard library."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects elements and text, and complains about tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.values: list[float] = []
        self.words: list[str] = []
        self.cell: list[str] | None = None
        self.feed(html)
        self.close()
        if self.open:
            self.faults.append(f"never closed: {self.open}")
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = []
        elif tag == "data":
            self.values.append(float(dict(attrs)["value"] or "nan"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-3:]}")
        else:
            self.open.pop()
        if tag in ("td", "th") and self.cell is not None:
            self.tables[-1][-1].append("".join(self.cell).strip())
            self.cell = None

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.words.append(data)
        if self.cell is not None:
            self.cell.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def table(self, head: str) -> list[list[str]]:
        """The first table whose first column head is `head`."""
        return next(table for table in self.tables if table and table[0][0] == head)


def drawings(html: str) -> list[ET.Element]:
    """Every SVG of the page, as XML."""
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def tips(drawing: ET.Element) -> list[str]:
    return [title.text or "" for title in drawing.iter("title")]
