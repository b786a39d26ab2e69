"""The figures of the README and the docs, drawn from the files in docs/results.

    python -m tools.figures                # all, into docs/images
    python -m tools.figures method ranks   # some

`method`: three panels share their rows, one per task: its accuracy and that of the tasks before it, its factor
scores, and how many of its factors were there already. `comparison`: all methods on Split MNIST. `expert-weight`: how
accuracy depends on the weight of the experts where the task is inferred. `ranks`: the factors that each task took in
each layer of a pretrained network.
"""

from __future__ import annotations

import argparse
import html
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import InputError, run_program
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.report.charts import Point, Series, cell_text, comparison_charts, lines, strongest
from ibpwf.lab.report.drawing import WIDTH, Chart, Drawing, element, short, tick_label, tick_names, ticks
from ibpwf.lab.report.experiments import experiment_of, panel_scores, read_comparisons
from ibpwf.lab.report.rendering import METHOD_NAMES, short_commit
from ibpwf.lab.report.runs import Run, Scores, read_result
from ibpwf.storage.files import read_json, write_text

DOCS = Path(__file__).parents[1] / "docs"
FONT = "-apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def canvas(title: str, width: float, height: float) -> Drawing:
    """A white sheet with a thin border, whatever the page around it."""
    drawing = Drawing(title, width, height)
    size = {"width": f"{width - 1:g}", "height": f"{height - 1:g}"}
    drawing.add("rect", "", x="0.5", y="0.5", rx="10", fill="#ffffff", stroke="#d9dce1", **size)
    return drawing


def svg_file(drawing: Drawing, style: str) -> str:
    """A drawing as an SVG file."""
    width, height = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    inside = f"<title>{html.escape(drawing.title)}</title><style>{style}</style>{''.join(drawing.shapes)}"
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return element("svg", inside, xmlns="http://www.w3.org/2000/svg", **size, role="img") + "\n"


# Charts of the report, side by side

GAP, TOP = 30.0, 84.0
STYLE = f"""
text {{ font: 12.5px {FONT};
  fill: #1b1f24; }}
.head {{ font-size: 19px; font-weight: 650; }} .panel {{ font-size: 14.5px; font-weight: 650; }}
.own {{ font-weight: 700; }} .axis {{ fill: #57606a; }}
.rule {{ stroke: #d9dce1; }} .base {{ stroke: #8b949e; }} .expected {{ stroke: #b0492c; stroke-dasharray: 6 4; }}
.s1 {{ --c: #e69f00; }} .s4 {{ --c: #0072b2; }} .line {{ stroke: var(--c); stroke-width: 2; }} \
.dot {{ fill: var(--c); }}
.hit {{ fill: transparent; }}
"""
COLORS = ".s0 { --c: #0072b2; } .s1 { --c: #d55e00; } .line { fill: none; } .head { font-size: 16px; }\n"


def beside(charts: Sequence[Chart], title: str, said: str, top: float, panels: Iterable[str] = ()) -> Drawing:
    """Charts under one title, each with its name where it has one."""
    sheet = canvas(said, 20 + len(charts) * (WIDTH + GAP), top + max(chart.height for chart in charts) + 10)
    sheet.label(20, 36, title, "start", "head")
    names = list(panels)
    for i, chart in enumerate(charts):
        x = 20 + i * (WIDTH + GAP)
        if names:
            sheet.label(x + 18, 68, names[i], "start", "panel")
        sheet.shapes.append(element("svg", "".join(chart.shapes), x=x, y=top, width=chart.width, height=chart.height))
    return sheet


def comparison(results: Path, out: Path) -> None:
    def unread(path: Path, error: Exception) -> None:
        sys.stderr.write(f"warning: {path} is left out: {error}\n")

    found = {record.source: record for record in read_comparisons(results, unread)}
    record = found.get("compare-split-mnist/*.json")
    charts = {} if record is None else comparison_charts(record)
    if record is None or not charts:
        raise InputError(f"{results / 'compare-split-mnist'} has no accuracies to draw.")
    said = f"{record.title}. " + " ".join(f"{chart.title}." for chart in charts.values())
    write_text(out, svg_file(beside(list(charts.values()), record.title, said, TOP, charts), STYLE))


def expert_weight(results: Path, out: Path) -> None:
    title = "Class accuracy by the weight of the experts"
    files = {
        name: results / "class-incremental" / f"{name}-parts.json"
        for name in ("split-mnist", "split-fashion-mnist", "split-cifar10", "permuted-mnist")
    }
    charts = [sweep(f"{title}, {name}", name, read_json(path)) for name, path in files.items() if path.is_file()]
    if not charts:
        raise InputError(f"{results} has no class-incremental/*-parts.json to draw.")
    write_text(out, svg_file(beside(charts, title, title, TOP - 30), STYLE + COLORS))


def sweep(title: str, name: str, parts: Mapping[str, Any]) -> Chart:
    """Mean over seeds for every weight β beside the router's fitted α, and the weights that were fitted."""
    seeds = parts["seeds"]
    tried = [entry["weight"] for entry in seeds[0]["sweep"]]
    points = []
    for place, weight in enumerate(tried):
        found = [seed["sweep"][place]["class"] for seed in seeds]
        deviation = statistics.stdev(found) if len(found) > 1 else None
        points.append(Point(float(place), statistics.fmean(found), deviation, f"weight {weight:g}"))
    mean = statistics.fmean(seed["weights"]["experts"] for seed in seeds)
    reached = statistics.fmean(seed["ways"][-1]["class"] for seed in seeds)
    place_of_mean = float(np.interp(mean, tried, range(len(tried))))
    fitted = [Point(place_of_mean, reached, None, f"weight {mean:.2f} on average")]
    marks = [(float(place), tick_label(weight)) for place, weight in enumerate(tried)]
    series = [Series(f"{name}, mean of {len(seeds)} seeds", [points]), Series("as fitted to held-out rows", [fitted])]
    return lines(series, marks, ("weight of the experts", "accuracy, %"), title)


# The method

FULL = 1000.0
LEFT, MAP, SCORES, BARS = 76.0, 226.0, 392.0, 186.0  # row names, and the widths of the three panels
MAP_AT, SCORES_AT, BARS_AT = 20 + LEFT, 20 + LEFT + MAP + 34, 20 + LEFT + MAP + SCORES + 68
ROWS_AT = 104.0
METHOD_STYLE = f"""
text {{ font-family: {FONT};
  font-size: 12.5px; fill: #1b1f24; }}
.head {{ font-size: 19px; font-weight: 650; }}
.panel {{ font-size: 14.5px; font-weight: 650; }}
.soft, .axis {{ fill: #57606a; }}
.foot {{ font-size: 11px; fill: #57606a; }}
.fresh {{ fill: #8a5a00; font-weight: 600; }}
.inside {{ fill: #fff; }}
line.base {{ stroke: #8b949e; }}
"""


def method(results: Path, out: Path) -> None:
    """Split MNIST at the paper's size, with the factor scores that figure-factors measured."""
    run, factors = read_result(results / "split-mnist-paper.json"), "reproduction/figure-factors.json"
    panels = experiment_of(read_json(results / factors), factors).measured.panels
    scores = next((panel_scores(panel) for panel in panels if panel.ran == run.about.scenario), None)
    matrix = run.mean_matrix("task")
    if not matrix or scores is None or not scores.width:
        raise InputError(f"{results / factors} has no factor scores of {run.about.scenario}; measure it again.")
    write_text(out, svg_file(method_figure(run, matrix, scores), METHOD_STYLE))


def method_figure(run: Run, matrix: Matrix, scores: Scores) -> Drawing:
    rows = min(len(matrix), len(scores.rows))
    height = min(max(220.0 / rows, 18.0), 44.0)
    names = tick_names(run.task_names()[:rows], min(LEFT - 10, MAP / rows))
    bottom = ROWS_AT + rows * height
    used = [sum(value is not None for value in row) for row in scores.rows]
    flat = all(len({row[j] for row in matrix[j:]}) == 1 for j in range(len(matrix)))
    few_new = all(3 * len(new) < count for new, count in zip(scores.new[1:], used[1:], strict=True))
    name = METHOD_NAMES.get(run.about.method, run.about.method)
    title = f"{name} on {run.about.scenario}: {rows} tasks, learnt one after another"
    said = (
        f"{title}. Left: the accuracy of every task after every task. Middle: which factors each task uses, "
        "and which of them are new. Right: the number of reused and new factors of each task."
    )
    sheet = canvas(said, FULL, bottom + 96)
    sheet.label(20, 36, title, "start", "head")
    for x, head, below in (
        (MAP_AT, "Nothing is forgotten" if flat else "Accuracy", "accuracy in %, task given"),
        (SCORES_AT, "Factors are shared", f"factor scores |λ| of each task, layer {short(scores.layer, 16)}"),
        (BARS_AT, "Few are new" if few_new else "Reused and new", "factors of each task"),
    ):
        sheet.label(x, 66, head, "start", "panel")
        sheet.label(x, 84, below, "start", "soft")
    for t in range(rows):
        sheet.label(MAP_AT - 10, ROWS_AT + (t + 0.5) * height + 4.5, short(names[t], 9), "end")
    sheet.label(20, ROWS_AT - 10, "after task", "start", "axis")
    _accuracies(sheet, matrix, height, names)
    _score_rows(sheet, scores, rows, height)
    _bars(sheet, scores, used[:rows], height)
    _foot(sheet, run, scores, bottom)
    return sheet


def mix(first: str, second: str, share: float) -> str:
    """A color between two, `share` of the way to the second."""
    parts = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def ramp(share: float, pale: str, full: str, deep: str) -> str:
    """Weak to strong, through a full color."""
    share = min(max(share, 0.0), 1.0)
    return mix(pale, full, share * 2) if share < 0.5 else mix(full, deep, share * 2 - 1)


BLUE, ORANGE = "#0072b2", "#e69f00"
REUSED = "#cfe5f5", BLUE, "#00304f"
NEW = "#fbe3b0", ORANGE, "#9a5200"


def _box(sheet: Drawing, x: float, y: float, width: float, height: float, fill: str) -> None:
    sheet.add("rect", "", x=x, y=y, width=width, height=height, fill=fill)


def _ticks(sheet: Drawing, places: Sequence[tuple[float, str]], bottom: float) -> None:
    for x, shown in places:
        sheet.line("base", x, bottom, x, bottom + 4)
        sheet.label(x, bottom + 18, shown)


def _accuracies(sheet: Drawing, matrix: Matrix, height: float, names: Sequence[str]) -> None:
    rows = len(names)
    cell, bottom = MAP / rows, ROWS_AT + rows * height
    for i in range(rows):
        for j, value in enumerate(matrix[i][: i + 1]):
            if value is None:
                continue
            share = min(max((value - 40) / 64, 0.0), 1.0)
            color, ink = ramp(share, "#d5edfe", "#3988cd", "#15407a"), "#000" if share < 0.6 else "#fff"
            x, y = MAP_AT + j * cell, ROWS_AT + i * height
            sheet.add("rect", "", x=x + 1, y=y + 1, width=cell - 2, height=height - 2, rx=2, fill=color)
            if cell >= 22:
                shown = cell_text(value) if cell >= 36 else f"{value:.0f}"
                style = f"fill:{ink}" + ("" if cell >= 36 else ";font-size:10.5px")
                middle = y + height / 2 + 4.5
                sheet.add("text", "", shown, x=x + cell / 2, y=middle, text_anchor="middle", style=style)
    for j in range(rows):
        sheet.label(MAP_AT + (j + 0.5) * cell, bottom + 18, short(names[j], max(int(cell / 7), 2)))
    sheet.label(MAP_AT + MAP / 2, bottom + 38, "accuracy on task", class_="axis")


def _score_rows(sheet: Drawing, scores: Scores, rows: int, height: float) -> None:
    cell, high, bottom = SCORES / scores.width, strongest(scores), ROWS_AT + rows * height
    width = cell - 0.6 if cell > 4 else cell + 0.06
    for t in range(rows):
        y = ROWS_AT + t * height + 3
        _box(sheet, SCORES_AT, y, SCORES, height - 6, "#f3f4f6")
        for k, value in enumerate(scores.rows[t]):
            if value is not None:
                color = ramp(abs(value) / high, *(NEW if k in scores.new[t] else REUSED))
                _box(sheet, SCORES_AT + k * cell, y, width, height - 6, color)
    _ticks(sheet, [(SCORES_AT + (v - 0.5) * cell, f"{v:g}") for v in ticks(1, scores.width, 8)], bottom)
    sheet.label(SCORES_AT + SCORES / 2, bottom + 38, "factor, in stick order", class_="axis")


def _bars(sheet: Drawing, scores: Scores, used: Sequence[int], height: float) -> None:
    unit, thick, bottom = (BARS - 44) / max(*used, 1), min(height - 6, 26.0), ROWS_AT + len(used) * height
    for t, count in enumerate(used):
        y = ROWS_AT + t * height + (height - thick) / 2
        new = len(scores.new[t])
        reused, middle = count - new, y + thick / 2 + 4.5
        _box(sheet, BARS_AT, y, reused * unit, thick, BLUE)
        _box(sheet, BARS_AT + reused * unit, y, new * unit, thick, ORANGE)
        if reused * unit > 84:
            sheet.label(BARS_AT + 8, middle, f"{reused} reused", "start", "inside")
        sheet.label(BARS_AT + count * unit + 5, middle, f"{new} new" if new else "none", "start", "fresh")
    sheet.line("base", BARS_AT, ROWS_AT, BARS_AT, bottom)
    _ticks(sheet, [(BARS_AT + v * unit, f"{v:g}") for v in ticks(0, max(*used, 1), 3)], bottom)
    sheet.label(BARS_AT + (BARS - 44) / 2, bottom + 38, "factors used", class_="axis")


def _foot(sheet: Drawing, run: Run, scores: Scores, bottom: float) -> None:
    """The color keys, and where the numbers come from."""
    steps = 24
    for at, name, ramped in ((SCORES_AT, "reused, weak to strong", REUSED), (SCORES_AT + 206, "new", NEW)):
        for i in range(steps):
            _box(sheet, at + i * 2, bottom + 52, 2.1, 9, ramp(i / (steps - 1), *ramped))
        sheet.label(at + steps * 2 + 7, bottom + 61, name, "start", "soft")
    seeds = len(run.about.seeds)
    over = f"accuracy: mean of {seeds} seeds; factors: seed {scores.seed}. " if seeds > 1 else ""
    commit = f", commit {short_commit(run.about.commit)}" if run.about.get("commit") else ""
    source = f"{over}Made by: {short(run.about.command, 110)}{commit}"
    sheet.label(20, bottom + 84, source[:1].upper() + source[1:], "start", "foot")


# Ranks


def layer_title(name: str) -> str:
    """A layer of an inverted residual network in words: `4.1 expand` is the first of block 1 in stage 4."""
    found = re.fullmatch(r".*levels\.(\d+)\.(\d+)\.layers\.(\d+)\.conv", name)
    if found:
        stage, block, part = found.groups()  # in a block that does not expand, the first is within channels
        return f"{int(stage) + 1}.{int(block) + 1} {'expand' if part == '0' else 'project'}"
    return "stem" if ".stem." in name else "last" if re.fullmatch(r".*levels\.\d+\.conv", name) else name


def ranks(results: Path, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    run = read_json(results / "trained-networks" / "cifar10.json")["runs"][0]
    layers, tasks = list(run["added"][0]["ranks"]), [f"classes {task['name']}" for task in run["tasks"]]
    panels = {
        title: np.array([[task[kind][layer] for layer in layers] for task in run["added"]])
        for kind, title in (("ranks", "factors that a task reads"), ("new", "of these, new"))
    }
    most = max(int(panel.max()) for panel in panels.values())
    figure, axes = pyplot.subplots(2, 1, figsize=(11, 2.6 + 0.5 * len(tasks)), sharex=True, layout="constrained")
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(panel, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_yticks(range(len(tasks)), tasks, fontsize=8)
        for (row, column), number in np.ndenumerate(panel):
            color = "white" if number > most / 2 else "black"
            axis.text(column, row, str(number), ha="center", va="center", fontsize=7, color=color)
    axes[-1].set_xticks(range(len(layers)), map(layer_title, layers), rotation=90, fontsize=7)
    axes[-1].set_xlabel("layer: stage.block, from the image to the features", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.6)
    figure.savefig(out, dpi=130)
    pyplot.close(figure)


FIGURES = {
    "method": (method, "method.svg"),
    "comparison": (comparison, "comparison.svg"),
    "expert-weight": (expert_weight, "expert-weight.svg"),
    "ranks": (ranks, "ranks.png"),
}


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"all by default, or some of {', '.join(FIGURES)}"
    )
    parser.add_argument("--results", type=Path, default=DOCS / "results")
    parser.add_argument("--out", type=Path, default=DOCS / "images", help="a folder")
    asked = parser.parse_args(given)
    for name in asked.figures:
        if name not in FIGURES:
            parser.error(f"figure is {name!r}; choose from {', '.join(FIGURES)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.figures or FIGURES:
        draw, file = FIGURES[name]
        draw(asked.results, asked.out / file)
    return 0


if __name__ == "__main__":
    run_program(main)
