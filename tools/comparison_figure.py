"""The README's picture of all methods on one benchmark, drawn from the result files.

python -m tools.comparison_figure docs/results/compare-split-mnist -o docs/images/comparison.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.report.drawing import WIDTH, Shape, coordinate
from ibpwf.lab.report.experiment_record import ComparisonRecord
from ibpwf.lab.report.paper_charts import comparison_charts
from ibpwf.lab.report.result_files import read_comparisons
from ibpwf.storage.files import write_text
from tools.picture import canvas, svg_file

GAP, TOP = 30.0, 84.0
STYLE = """
text { font: 12.5px -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif;
  fill: #1b1f24; }
.head { font-size: 19px; font-weight: 650; } .panel { font-size: 14.5px; font-weight: 650; }
.own { font-weight: 700; } .axis { fill: #57606a; }
.rule { stroke: #d9dce1; } .base { stroke: #8b949e; } .expected { stroke: #b0492c; stroke-dasharray: 6 4; }
.s1 { --c: #e69f00; } .s4 { --c: #0072b2; } .line { stroke: var(--c); stroke-width: 2; } .dot { fill: var(--c); }
.hit { fill: transparent; }
"""


def comparison_figure(record: ComparisonRecord) -> str:
    """Both settings side by side as an SVG file; a pointed-at line tells its numbers."""
    charts = comparison_charts(record)
    if not charts:
        raise InputError(f"{record.folder} has no accuracies to draw; give a folder of results.")
    tall = max(chart.height for chart in charts.values())
    said = f"{record.title}. " + " ".join(f"{chart.title}." for chart in charts.values())
    sheet = canvas(said, 20 + len(charts) * (WIDTH + GAP), TOP + tall + 10)
    sheet.label(20, 36, record.title, "start", "head")
    for i, (name, chart) in enumerate(charts.items()):
        x = 20 + i * (WIDTH + GAP)
        sheet.label(x + 18, 68, name, "start", "panel")
        size = {"width": coordinate(chart.width), "height": coordinate(chart.height)}
        place = {"x": coordinate(x), "y": coordinate(TOP), **size}
        sheet.shapes.append(Shape("svg", place, inner=chart.shapes))
    return svg_file(sheet, STYLE)


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.comparison_figure", description=about)
    parser.add_argument("folder", type=Path, metavar="COMPARE_FOLDER")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)

    def unread(path: Path, error: Exception) -> None:
        sys.stderr.write(f"warning: {path} is left out: {error}\n")

    try:
        found = {record.folder: record for record in read_comparisons(given.folder.parent, unread)}
        if given.folder not in found:
            raise InputError(f"{given.folder} is no folder compare-… of results.")
        write_text(given.out, comparison_figure(found[given.folder]))
    except IBPWFError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
