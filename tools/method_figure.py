"""The README's picture of the method, drawn from a real run.

    python -m tools.method_figure docs/results -o docs/images/method.svg
    python -m tools.method_figure RUN_FOLDER -o method.svg

Three panels share their rows, one per task: its accuracy and that of the tasks before it, its factor scores,
and how many of its factors were there already.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.report.colors import BLUE, ORANGE, level, level_color, mix, text_on
from ibpwf.lab.report.drawing import Drawing, short, tick_names, ticks
from ibpwf.lab.report.experiment_record import FactorsMeasured, experiment_of
from ibpwf.lab.report.rendering import METHOD_NAMES, short_commit
from ibpwf.lab.report.result_files import is_results_folder
from ibpwf.lab.report.run_charts import cell_text, strongest
from ibpwf.lab.report.run_record import Run, Scores, read_result_file, read_run
from ibpwf.storage.files import read_json, write_text
from tools.picture import canvas, svg_file

ACCURACY, FACTORS = "split-mnist-paper.json", "reproduction/figure-factors.json"
WIDTH = 1000.0
LEFT, MAP, SCORES, BARS = 76.0, 226.0, 392.0, 186.0  # row names, and the widths of the three panels
MAP_AT, SCORES_AT, BARS_AT = 20 + LEFT, 20 + LEFT + MAP + 34, 20 + LEFT + MAP + SCORES + 68
TOP = 104.0
STYLE = """
text { font-family: -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif;
  font-size: 12.5px; fill: #1b1f24; }
.head { font-size: 19px; font-weight: 650; }
.panel { font-size: 14.5px; font-weight: 650; }
.soft, .axis { fill: #57606a; }
.foot { font-size: 11px; fill: #57606a; }
.fresh { fill: #8a5a00; font-weight: 600; }
.inside { fill: #fff; }
line.base { stroke: #8b949e; }
"""


def ramp(share: float, *, new: bool) -> str:
    """Weak to strong: orange for a factor the task opened, blue for one it reuses."""
    pale, full, deep = ("#fbe3b0", ORANGE, "#9a5200") if new else ("#cfe5f5", BLUE, "#00304f")
    share = min(max(share, 0.0), 1.0)
    return mix(pale, full, share * 2) if share < 0.5 else mix(full, deep, share * 2 - 1)


def method_figure(run: Run) -> str:
    """The picture as an SVG file."""
    matrix, scores = run.mean_matrix("task"), run.scores
    if not matrix or scores is None or not scores.width:
        raise InputError(
            f"{run.folder} has no accuracies or no factor scores; give the folder of a finished IBP-WF run."
        )
    rows = min(len(matrix), len(scores.rows))
    height = min(max(220.0 / rows, 18.0), 44.0)
    names = tick_names(run.task_names(rows), min(LEFT - 10, MAP / rows))
    bottom = TOP + rows * height
    method = METHOD_NAMES.get(run.about.method, run.about.method)
    title = f"{method} on {run.about.scenario}: {rows} tasks, learnt one after another"
    said = (
        f"{title}. Left: the accuracy of every task after every task. Middle: which factors each task uses, "
        "and which of them are new. Right: the number of reused and new factors of each task."
    )
    sheet = canvas(said, WIDTH, bottom + 96)
    sheet.label(20, 36, title, "start", "head")
    for x, head, below in (
        (MAP_AT, "Nothing is forgotten" if _flat(matrix) else "Accuracy", "accuracy in %, task given"),
        (SCORES_AT, "Factors are shared", f"factor scores |λ| of each task, layer {short(scores.layer, 16)}"),
        (BARS_AT, "Few are new" if _few_new(scores) else "Reused and new", "factors of each task"),
    ):
        sheet.label(x, 66, head, "start", "panel")
        sheet.label(x, 84, below, "start", "soft")
    for t in range(rows):
        sheet.label(MAP_AT - 10, TOP + (t + 0.5) * height + 4.5, short(names[t], 9), "end")
    sheet.label(20, TOP - 10, "after task", "start", "axis")
    _accuracies(sheet, matrix, height, names)
    _score_rows(sheet, scores, rows, height)
    _bars(sheet, scores, rows, height)
    _foot(sheet, run, scores, bottom)
    return svg_file(sheet, STYLE)


def _flat(matrix: Matrix) -> bool:
    """Every task keeps its accuracy to the end."""
    return all(len({row[j] for row in matrix[j:]}) == 1 for j in range(len(matrix)))


def _few_new(scores: Scores) -> bool:
    """Every task after the first has fewer new factors than a third of those it uses."""
    used = [sum(value is not None for value in row) for row in scores.rows]
    return all(3 * len(new) < count for new, count in zip(scores.new[1:], used[1:], strict=True))


def _box(sheet: Drawing, x: float, y: float, width: float, height: float, fill: str) -> None:
    sheet.add("rect", "", x=x, y=y, width=width, height=height, fill=fill)


def _ticks(sheet: Drawing, places: Sequence[tuple[float, str]], bottom: float) -> None:
    for x, shown in places:
        sheet.upright("base", x, (bottom, bottom + 4))
        sheet.label(x, bottom + 18, shown)


def _accuracies(sheet: Drawing, matrix: Matrix, height: float, names: Sequence[str]) -> None:
    rows = len(names)
    cell, bottom = MAP / rows, TOP + rows * height
    for i in range(rows):
        for j, value in enumerate(matrix[i][: i + 1]):
            if value is None:
                continue
            color = level_color(level(value, 40.0, 104.0))
            x, y = MAP_AT + j * cell, TOP + i * height
            sheet.add("rect", "", x=x + 1, y=y + 1, width=cell - 2, height=height - 2, rx=2, fill=color)
            if cell >= 22:
                shown = cell_text(value) if cell >= 36 else f"{value:.0f}"
                style = f"fill:{text_on(color)}" + ("" if cell >= 36 else ";font-size:10.5px")
                middle = y + height / 2 + 4.5
                sheet.add("text", "", shown, x=x + cell / 2, y=middle, text_anchor="middle", style=style)
    for j in range(rows):
        sheet.label(MAP_AT + (j + 0.5) * cell, bottom + 18, short(names[j], max(int(cell / 7), 2)))
    sheet.label(MAP_AT + MAP / 2, bottom + 38, "accuracy on task", class_="axis")


def _score_rows(sheet: Drawing, scores: Scores, rows: int, height: float) -> None:
    cell, high, bottom = SCORES / scores.width, strongest(scores), TOP + rows * height
    width = cell - 0.6 if cell > 4 else cell + 0.06
    for t in range(rows):
        y = TOP + t * height + 3
        _box(sheet, SCORES_AT, y, SCORES, height - 6, "#f3f4f6")
        for k, value in enumerate(scores.rows[t]):
            if value is not None:
                color = ramp(abs(value) / high, new=k in scores.new[t])
                _box(sheet, SCORES_AT + k * cell, y, width, height - 6, color)
    _ticks(sheet, [(SCORES_AT + (v - 0.5) * cell, f"{v:g}") for v in ticks(1, scores.width, 8)], bottom)
    sheet.label(SCORES_AT + SCORES / 2, bottom + 38, "factor, in stick order", class_="axis")


def _bars(sheet: Drawing, scores: Scores, rows: int, height: float) -> None:
    used = [sum(value is not None for value in scores.rows[t]) for t in range(rows)]
    unit, thick, bottom = (BARS - 44) / max(*used, 1), min(height - 6, 26.0), TOP + rows * height
    for t in range(rows):
        y = TOP + t * height + (height - thick) / 2
        new = len(scores.new[t])
        reused, middle = used[t] - new, y + thick / 2 + 4.5
        _box(sheet, BARS_AT, y, reused * unit, thick, BLUE)
        _box(sheet, BARS_AT + reused * unit, y, new * unit, thick, ORANGE)
        if reused * unit > 84:
            sheet.label(BARS_AT + 8, middle, f"{reused} reused", "start", "inside")
        sheet.label(BARS_AT + used[t] * unit + 5, middle, f"{new} new" if new else "none", "start", "fresh")
    sheet.upright("base", BARS_AT, (TOP, bottom))
    _ticks(sheet, [(BARS_AT + v * unit, f"{v:g}") for v in ticks(0, max(*used, 1), 3)], bottom)
    sheet.label(BARS_AT + (BARS - 44) / 2, bottom + 38, "factors used", class_="axis")


def _foot(sheet: Drawing, run: Run, scores: Scores, bottom: float) -> None:
    """The color keys, and where the numbers come from."""
    steps = 24
    for at, name, new in ((SCORES_AT, "reused, weak to strong", False), (SCORES_AT + 206, "new", True)):
        for i in range(steps):
            _box(sheet, at + i * 2, bottom + 52, 2.1, 9, ramp(i / (steps - 1), new=new))
        sheet.label(at + steps * 2 + 7, bottom + 61, name, "start", "soft")
    seeds = len(run.about.seeds)
    over = f"accuracy: mean of {seeds} seeds; factors: seed {scores.seed}. " if seeds > 1 else ""
    commit = f", commit {short_commit(run.result.commit)}" if run.result and run.result.commit else ""
    source = f"{over}Made by: {short(run.result.command if run.result else '–', 110)}{commit}"
    sheet.label(20, bottom + 84, source[:1].upper() + source[1:], "start", "foot")


def run_of_results(folder: Path) -> Run:
    """Split MNIST at the paper's size, with the factor scores that figure-factors measured."""
    run = read_result_file(folder / ACCURACY)
    measured = experiment_of(read_json(folder / FACTORS), folder, FACTORS).measured
    panels = measured.panels if isinstance(measured, FactorsMeasured) else []
    mine = [panel for panel in panels if panel.ran == run.about.scenario]
    if not mine:
        raise InputError(f"{folder / FACTORS} has no panel of {run.about.scenario}; measure it again.")
    run.scores = mine[0].scores
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.method_figure", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        if is_results_folder(given.folder):
            if not (given.folder / FACTORS).exists():
                sys.stdout.write(f"{given.out} is left as it is: {given.folder} has no {FACTORS} yet.\n")
                return 0
            run = run_of_results(given.folder)
        else:
            run = read_run(given.folder)
        write_text(given.out, method_figure(run))
    except IBPWFError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
