"""The README's picture of all methods on one benchmark, drawn from the result files.

python -m tools.comparison_figure docs/results/compare-split-mnist -o docs/images/comparison.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.report.chart import label
from ibpwf.lab.report.comparison_section import setting_charts
from ibpwf.lab.report.experiment_record import ComparisonRecord
from ibpwf.lab.report.markup import Markup, el, text
from ibpwf.lab.report.results_folder import read_comparisons
from ibpwf.storage import folder as store

PANEL, GAP, TOP = 420.0, 30.0, 84.0
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
    charts = setting_charts(record)
    if not charts:
        raise InputError(f"{record.folder} has no accuracies to draw; give a folder of results.")
    width = 20 + len(charts) * (PANEL + GAP)
    tall = max(float(chart.height) for chart in charts)
    parts: list[Markup] = [
        el("rect", x=0.5, y=0.5, width=width - 1, height=TOP + tall + 9, rx=10, fill="#ffffff", stroke="#d9dce1"),
        label(20, 36, record.title, "start", "head"),
    ]
    for i, chart in enumerate(charts):
        x = 20 + i * (PANEL + GAP)
        parts.append(label(x + 18, 68, chart.name, "start", "panel"))
        place = f'<svg x="{x:g}" y="{TOP:g}" width="{PANEL:g}" height="{chart.height:g}" '
        parts.append(Markup(chart.drawing.replace("<svg ", place, 1)))
    said = f"{record.title}. " + " ".join(chart.title + "." for chart in charts)
    root = el(
        "svg",
        el("title", text(said)),
        el("style", Markup(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {TOP + tall + 10:.0f}",
        width=width,
        height=TOP + tall + 10,
        role="img",
    )
    return f"{root}\n"


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
        store.write_text(given.out, comparison_figure(found[given.folder]))
    except IBPWFError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
