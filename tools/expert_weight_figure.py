"""How much depends on the weight of the experts where nobody tells the task, drawn from the result files.

python -m tools.expert_weight_figure docs/results -o docs/images/expert-weight.svg
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.lab.report.drawing import WIDTH, Chart, Shape, coordinate, tick_label
from ibpwf.lab.report.paper_charts import Point, Series, series_chart
from ibpwf.storage.files import read_json, write_text
from tools.class_incremental_page import SCENARIOS
from tools.comparison_figure import GAP, STYLE, TOP
from tools.picture import canvas, svg_file

TITLE = "Class accuracy by the weight of the experts"
COLORS = ".s0 { --c: #0072b2; } .s1 { --c: #d55e00; } .line { fill: none; } .head { font-size: 16px; }\n"


def sweep_of(name: str, parts: Mapping[str, Any]) -> Chart:
    """Mean over seeds for every weight β beside the router's fitted α, and the weights that were fitted."""
    seeds = parts["seeds"]
    tried = [entry["weight"] for entry in seeds[0]["sweep"]]
    points = []
    for place, weight in enumerate(tried):
        found = [seed["sweep"][place]["class"] for seed in seeds]
        deviation = statistics.stdev(found) if len(found) > 1 else None
        points.append(Point(float(place), statistics.fmean(found), deviation, f"weight {weight:g}"))
    own = [seed["weights"]["experts"] for seed in seeds]
    reached = [seed["ways"][-1]["class"] for seed in seeds]
    mean = statistics.fmean(own)
    place_of_mean = float(np.interp(mean, tried, range(len(tried))))
    fitted = [Point(place_of_mean, statistics.fmean(reached), None, f"weight {mean:.2f} on average")]
    marks = [(float(place), tick_label(weight)) for place, weight in enumerate(tried)]
    series = [Series(f"{name}, mean of {len(seeds)} seeds", points), Series("as fitted to held-out rows", fitted)]
    return series_chart(series, marks, ("weight of the experts", "accuracy, %"), f"{TITLE}, {name}")


def expert_weight_figure(results: Path) -> str | None:
    """All data sets whose parts were looked at, side by side; None where there is none."""
    charts = []
    for name in SCENARIOS:
        path = results / "class-incremental" / f"{name}-parts.json"
        if path.is_file():
            charts.append(sweep_of(name, read_json(path)))
    if not charts:
        return None
    tall = max(chart.height for chart in charts)
    sheet = canvas(TITLE, 20 + len(charts) * (WIDTH + GAP), TOP - 30 + tall + 10)
    sheet.label(20, 36, TITLE, "start", "head")
    for i, chart in enumerate(charts):
        size = {"width": coordinate(chart.width), "height": coordinate(chart.height)}
        place = {"x": coordinate(20 + i * (WIDTH + GAP)), "y": coordinate(TOP - 30), **size}
        sheet.shapes.append(Shape("svg", place, inner=chart.shapes))
    return svg_file(sheet, STYLE + COLORS)


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.expert_weight_figure", description=about)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    drawn = expert_weight_figure(given.results)
    if drawn is None:
        sys.stderr.write(f"error: {given.results} has no class-incremental/*-parts.json to draw.\n")
        return 2
    write_text(given.out, drawn)
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
