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
from ibpwf.lab.report.accuracy_map import cell_text, tick_names
from ibpwf.lab.report.chart import label, ticks
from ibpwf.lab.report.colours import BLUE, ORANGE, level, level_colour, mix, text_on
from ibpwf.lab.report.experiment_drawings import panel_scores
from ibpwf.lab.report.factor_scores import largest
from ibpwf.lab.report.fields import Fields
from ibpwf.lab.report.markup import Markup, el, short, text
from ibpwf.lab.report.reading import read_result_file, read_run
from ibpwf.lab.report.results_folder import is_results_folder
from ibpwf.lab.report.run_record import Run, Scores
from ibpwf.lab.report.words import METHOD_NAMES, short_commit
from ibpwf.storage import folder as store

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
    names = tick_names([run.task_name(t) for t in range(rows)], min(LEFT - 10, MAP / rows))
    bottom = TOP + rows * height
    title = f"{METHOD_NAMES.get(run.method, run.method)} on {run.scenario}: {rows} tasks, learnt one after another"
    parts = [
        el("rect", x=0.5, y=0.5, width=WIDTH - 1, height=bottom + 95, rx=10, fill="#ffffff", stroke="#d9dce1"),
        label(20, 36, title, "start", "head"),
        *_panel(MAP_AT, "Nothing is forgotten" if _flat(matrix) else "Accuracy", "accuracy in %, task given"),
        *_panel(SCORES_AT, "Factors are shared", f"factor scores |λ| of each task, layer {short(scores.layer, 16)}"),
        *_panel(BARS_AT, "Few are new" if _few_new(scores) else "Reused and new", "factors of each task"),
        *(label(MAP_AT - 10, TOP + (t + 0.5) * height + 4.5, short(names[t], 9), "end") for t in range(rows)),
        label(20, TOP - 10, "after task", "start", "axis"),
        *_accuracies(matrix, rows, height, names),
        *_score_rows(scores, rows, height),
        *_bars(scores, rows, height),
        *_foot(run, scores, bottom),
    ]
    said = (
        f"{title}. Left: the accuracy of every task after every task. Middle: which factors each task uses, "
        "and which of them are new. Right: the number of reused and new factors of each task."
    )
    size = f"0 0 {WIDTH:.0f} {bottom + 96:.0f}"
    root = el(
        "svg",
        el("title", text(said)),
        el("style", Markup(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=size,
        width=WIDTH,
        height=bottom + 96,
        role="img",
    )
    return f"{root}\n"


def _flat(matrix: Matrix) -> bool:
    """Every task keeps its accuracy to the end."""
    return all(len({row[j] for row in matrix[j:]}) == 1 for j in range(len(matrix)))


def _few_new(scores: Scores) -> bool:
    """Every task after the first has fewer new factors than a third of those it uses."""
    used = [sum(value is not None for value in row) for row in scores.rows]
    return all(3 * len(new) < count for new, count in zip(scores.new[1:], used[1:], strict=True))


def _panel(x: float, title: str, below: str) -> list[Markup]:
    return [label(x, 66, title, "start", "panel"), label(x, 84, below, "start", "soft")]


def _accuracies(matrix: Matrix, rows: int, height: float, names: Sequence[str]) -> list[Markup]:
    cell = MAP / rows
    parts = []
    for i in range(rows):
        for j, value in enumerate(matrix[i][: i + 1]):
            if value is None:
                continue
            colour = level_colour(level(value, 40.0, 104.0))
            x, y = MAP_AT + j * cell, TOP + i * height
            parts.append(el("rect", x=x + 1, y=y + 1, width=cell - 2, height=height - 2, rx=2, fill=colour))
            if cell >= 22:
                shown = text(cell_text(value) if cell >= 36 else f"{value:.0f}")
                style = f"fill:{text_on(colour)}" + ("" if cell >= 36 else ";font-size:10.5px")
                middle = y + height / 2 + 4.5
                parts.append(el("text", shown, x=x + cell / 2, y=middle, text_anchor="middle", style=style))
    bottom = TOP + rows * height
    for j in range(rows):
        parts.append(label(MAP_AT + (j + 0.5) * cell, bottom + 18, short(names[j], max(int(cell / 7), 2))))
    parts.append(label(MAP_AT + MAP / 2, bottom + 38, "accuracy on task", "middle", "axis"))
    return parts


def _score_rows(scores: Scores, rows: int, height: float) -> list[Markup]:
    cell = SCORES / scores.width
    high = largest(scores)
    gap = 0.6 if cell > 4 else 0.0
    parts = []
    for t in range(rows):
        y = TOP + t * height + 3
        parts.append(el("rect", x=SCORES_AT, y=y, width=SCORES, height=height - 6, fill="#f3f4f6"))
        for k, value in enumerate(scores.rows[t]):
            if value is not None:
                colour = ramp(abs(value) / high, new=k in scores.new[t])
                x, width = SCORES_AT + k * cell, cell - gap + (0.0 if gap else 0.06)
                parts.append(el("rect", x=x, y=y, width=width, height=height - 6, fill=colour))
    bottom = TOP + rows * height
    for value in ticks(1, scores.width, 8):
        x = SCORES_AT + (value - 0.5) * cell
        parts.append(el("line", class_="base", x1=x, x2=x, y1=bottom, y2=bottom + 4))
        parts.append(label(x, bottom + 18, f"{value:g}"))
    parts.append(label(SCORES_AT + SCORES / 2, bottom + 38, "factor, in stick order", "middle", "axis"))
    return parts


def _bars(scores: Scores, rows: int, height: float) -> list[Markup]:
    used = [sum(value is not None for value in scores.rows[t]) for t in range(rows)]
    new = [len(scores.new[t]) for t in range(rows)]
    unit = (BARS - 44) / max(*used, 1)
    thick = min(height - 6, 26.0)
    parts = []
    for t in range(rows):
        y = TOP + t * height + (height - thick) / 2
        middle = y + thick / 2 + 4.5
        reused = used[t] - new[t]
        parts.append(el("rect", x=BARS_AT, y=y, width=reused * unit, height=thick, fill=BLUE))
        parts.append(el("rect", x=BARS_AT + reused * unit, y=y, width=new[t] * unit, height=thick, fill=ORANGE))
        if reused * unit > 84:
            parts.append(label(BARS_AT + 8, middle, f"{reused} reused", "start", "inside"))
        tail = f"{new[t]} new" if new[t] else "none"
        parts.append(label(BARS_AT + used[t] * unit + 5, middle, tail, "start", "fresh"))
    bottom = TOP + rows * height
    parts.append(el("line", class_="base", x1=BARS_AT, x2=BARS_AT, y1=TOP, y2=bottom))
    parts.append(label(BARS_AT, bottom + 18, "0", "middle"))
    for value in ticks(0, max(*used, 1), 3)[1:]:
        x = BARS_AT + value * unit
        parts.append(el("line", class_="base", x1=x, x2=x, y1=bottom, y2=bottom + 4))
        parts.append(label(x, bottom + 18, f"{value:g}"))
    parts.append(label(BARS_AT + (BARS - 44) / 2, bottom + 38, "factors used", "middle", "axis"))
    return parts


def _foot(run: Run, scores: Scores, bottom: float) -> list[Markup]:
    """The colour keys, and where the numbers come from."""
    parts, steps = [], 24
    for at, name, new in ((SCORES_AT, "reused, weak to strong", False), (SCORES_AT + 206, "new", True)):
        for i in range(steps):
            colour = ramp(i / (steps - 1), new=new)
            parts.append(el("rect", x=at + i * 2, y=bottom + 52, width=2.1, height=9, fill=colour))
        parts.append(label(at + steps * 2 + 7, bottom + 61, name, "start", "soft"))
    over = f"accuracy: mean of {len(run.seeds)} seeds; factors: seed {scores.seed}. " if len(run.seeds) > 1 else ""
    commit = f", commit {short_commit(run.commit)}" if run.commit else ""
    source = f"{over}Made by: {short(run.command, 110)}{commit}"
    parts.append(label(20, bottom + 84, source[:1].upper() + source[1:], "start", "foot"))
    return parts


def run_of_results(folder: Path) -> Run:
    """Split MNIST at the paper's size, with the factor scores that figure-factors measured."""
    run = read_result_file(folder / ACCURACY)
    content = Fields(store.read_json(folder / FACTORS), FACTORS)
    panels = [panel for panel in content.child("measured").children("panels") if panel.text("ran") == run.scenario]
    if not panels:
        raise InputError(f"{folder / FACTORS} has no panel of {run.scenario}; measure it again.")
    run.scores = panel_scores(panels[0], len(panels[0].items("tasks")))
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
        store.write_text(given.out, method_figure(run))
    except IBPWFError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
