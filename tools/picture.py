"""A drawing as an SVG file of its own, for the README: on white, whatever the page around it."""

from __future__ import annotations

from pathlib import Path

from ibpwf.lab.report.drawing import Drawing
from ibpwf.lab.report.rendering import environment


def canvas(title: str, width: float, height: float) -> Drawing:
    """A white sheet with a thin border."""
    drawing = Drawing(title, width, height)
    size = {"width": f"{width - 1:g}", "height": f"{height - 1:g}"}
    drawing.add("rect", "", x="0.5", y="0.5", rx="10", fill="#ffffff", stroke="#d9dce1", **size)
    return drawing


def svg_file(drawing: Drawing, style: str) -> str:
    template = environment().from_string(Path(__file__).with_name("picture.svg").read_text(encoding="utf-8"))
    return template.render(drawing=drawing, style=style).strip() + "\n"
