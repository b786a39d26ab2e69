"""The figures of the README and the docs, drawn by matplotlib from the files in docs/results.

python -m tools.figures                # all, into docs/images
python -m tools.figures method ranks   # some
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import InputError, run_program
from ibpwf.lab.experiments.compare import rows
from ibpwf.lab.experiments.results_folder import read_outcomes
from ibpwf.storage.files import read_json

DOCS = Path(__file__).parents[1] / "docs"
BLUE, ORANGE, SOFT = "#0072b2", "#e69f00", "#57606a"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 10,
    "svg.fonttype": "none",  # text stays text, for readers and for searching
    "svg.hashsalt": "ibpwf",  # and the same numbers are the same file
}
Axes = Any
Draw = Callable[[Path, Any], str]
"""Draws on a figure what a folder of results says, and gives that in words."""


def _read(results: Path, name: str) -> Any:
    if not (results / name).is_file():
        raise InputError(f"{results} has no {name} to draw.")
    return read_json(results / name)


def method(results: Path, figure: Any) -> str:
    """Split MNIST at the paper's size: each task's accuracy and that of those before it, its factor scores, and how
    many of its factors were there already."""
    run, panels = (_read(results, name) for name in ("split-mnist-paper.json", "reproduction/figure-factors.json"))
    panel = next(one for one in panels["measured"]["panels"] if one["ran"] == run["scenario"])
    names, size = [task["name"] for task in run["tasks"]], len(run["tasks"])
    matrix = np.array([seed["task"] for seed in run["matrix"]], dtype=float).mean(0)
    figure.set_size_inches(11, 3.4)
    map_, scores, bars = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": [3, 5.2, 2.2]})
    map_.imshow(matrix, cmap="Blues", vmin=40, vmax=104, aspect="auto")
    for (row, column), value in np.ndenumerate(matrix):
        if not np.isnan(value):
            map_.text(column, row, f"{value:.1f}", ha="center", va="center", color="white")
    flat = all(len(set(column[task:])) == 1 for task, column in enumerate(matrix.T.tolist()))
    title = "Nothing is forgotten" if flat else "Accuracy"
    map_.set(title=title, xlabel="accuracy on task, %, task given", ylabel="after task")
    map_.set_xticks(range(size), names)
    map_.set_yticks(range(size), names)
    shown = np.full((size, len(panel["scores"][-1])), np.nan)
    for task, (used, opened) in enumerate(zip(panel["selected"], panel["opened"], strict=True)):
        for place in used:
            shown[task, place] = abs(panel["scores"][task][place]) * (-1 if place in opened else 1)
    high = float(np.nanmax(np.abs(shown)))
    for sign, cmap in ((1, "Blues"), (-1, "Oranges")):
        part = np.ma.masked_less(np.nan_to_num(sign * shown, nan=-1.0), 0)
        scores.imshow(part, cmap=cmap, vmin=-high / 4, vmax=high, aspect="auto", interpolation="nearest")
    scores.set_xlim(-0.5, max(map(max, panel["selected"])) + 0.5)
    scores.set(title=f"Factors are shared: scores |λ|, {panel['layer']}", xlabel="factor, in stick order")
    for task, (used, opened) in enumerate(zip(panel["selected"], panel["opened"], strict=True)):
        bars.barh(task, len(used) - len(opened), color=BLUE)
        bars.barh(task, len(opened), left=len(used) - len(opened), color=ORANGE)
        bars.text(len(used) + 2, task, f"{len(opened)} new" if opened else "none", va="center", color="#8a5a00")
    bars.set(title="Few are new", xlabel="factors used (blue: reused)")
    bars.set_xlim(0, 1.35 * max(map(len, panel["selected"])))
    for axes in (map_, scores):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    _foot(figure, f"{len(run['seeds'])} seeds; factors of seed {panel['seed']}. {run['command']}")
    return f"IBP-WF on {run['scenario']}: {size} tasks, learned one after another"


def comparison(results: Path, figure: Any) -> str:
    """All methods on Split MNIST beside the paper's numbers."""
    if not (results / "compare-split-mnist").is_dir():
        raise InputError(f"{results} has no compare-split-mnist to draw.")
    table = [
        row for row in rows([one for _, one in read_outcomes(results / "compare-split-mnist")]) if not row["error"]
    ]
    figure.set_size_inches(9, 6.6)
    for axes, (setting, name) in zip(figure.subplots(1, 2), SETTINGS.items(), strict=True):
        found = sorted((r for r in table if r[f"{setting}_mean"] is not None), key=lambda r: r[f"{setting}_mean"])
        for place, row in enumerate(found):
            axes.errorbar(row[f"{setting}_mean"], place, xerr=row[f"{setting}_std"], fmt="o", color=BLUE, ms=4)
            if row[f"{setting}_paper"] is not None:
                axes.plot(row[f"{setting}_paper"], place, "D", color=ORANGE, ms=4, zorder=1)
        axes.set_yticks(range(len(found)), [row["method"] for row in found])
        axes.set(title=name, xlabel="accuracy after the last task, %")
        axes.grid(axis="x", color="#d9dce1")
    axes.plot([], [], "o", color=BLUE, ms=4, label="ours")
    axes.plot([], [], "D", color=ORANGE, ms=4, label="the paper's")
    axes.legend(frameon=False, loc="lower right")
    return "split-mnist: methods side by side"


SETTINGS = {"task": "Task given", "class": "Task inferred"}


def expert_weight(results: Path, figure: Any) -> str:
    """Accuracy by the weight of the experts beside the router's fitted one, where the task is inferred."""
    files = sorted((results / "class-incremental").glob("*-parts.json"))
    if not files:
        raise InputError(f"{results} has no class-incremental/*-parts.json to draw.")
    figure.set_size_inches(4 * len(files), 3)
    for axes, path in zip(figure.subplots(1, len(files), squeeze=False)[0], files, strict=True):
        seeds = read_json(path)["seeds"]
        tried = [entry["weight"] for entry in seeds[0]["sweep"]]
        found = np.array([[entry["class"] for entry in seed["sweep"]] for seed in seeds])
        spread = found.std(0, ddof=1) if len(found) > 1 else None
        axes.errorbar(range(len(tried)), found.mean(0), spread, fmt="o-", color=BLUE, ms=3, label="tried")
        fitted = statistics.fmean(seed["weights"]["experts"] for seed in seeds)
        reached = statistics.fmean(seed["ways"][-1]["class"] for seed in seeds)
        axes.plot(np.interp(fitted, tried, range(len(tried))), reached, "D", color="#d55e00", label="fitted")
        axes.set_xticks(range(0, len(tried), 2), [f"{weight:g}" for weight in tried[::2]])
        name = f"{path.stem.removesuffix('-parts')}, {len(seeds)} seeds"
        axes.set(title=name, xlabel="weight of the experts", ylabel="accuracy, %")
    axes.legend(frameon=False)
    return "Class accuracy by the weight of the experts"


def layer_title(name: str) -> str:
    """A layer of an inverted residual network in words: `4.1 expand` is the first of block 1 in stage 4."""
    found = re.fullmatch(r".*levels\.(\d+)\.(\d+)\.layers\.(\d+)\.conv", name)
    if found:
        stage, block, part = found.groups()  # in a block that does not expand, the first is within channels
        return f"{int(stage) + 1}.{int(block) + 1} {'expand' if part == '0' else 'project'}"
    return "stem" if ".stem." in name else "last" if re.fullmatch(r".*levels\.\d+\.conv", name) else name


def ranks(results: Path, figure: Any) -> str:
    """The factors that each task took in each layer of a pretrained network."""
    run = _read(results, "trained-networks/cifar10.json")["runs"][0]
    layers, tasks = list(run["added"][0]["ranks"]), [f"classes {task['name']}" for task in run["tasks"]]
    panels = {
        title: np.array([[task[kind][layer] for layer in layers] for task in run["added"]])
        for kind, title in (("ranks", "factors that a task reads"), ("new", "of these, new"))
    }
    most = max(int(panel.max()) for panel in panels.values())
    figure.set_size_inches(11, 2.6 + 0.5 * len(tasks))
    axes = figure.subplots(2, 1, sharex=True)
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        axis.imshow(panel, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axis.set_title(title)
        axis.set_yticks(range(len(tasks)), tasks)
        for (row, column), number in np.ndenumerate(panel):
            color = "white" if number > most / 2 else "black"
            axis.text(column, row, str(number), ha="center", va="center", fontsize=7, color=color)
    axes[-1].set_xticks(range(len(layers)), map(layer_title, layers), rotation=90, fontsize=7)
    axes[-1].set_xlabel("layer: stage.block, from the image to the features")
    return "Factors by task and layer"


def _foot(figure: Any, words: str) -> None:
    figure.supxlabel(f"Accuracy: mean of {words}", x=0.01, ha="left", fontsize=7, color=SOFT)


FIGURES: Mapping[str, tuple[Draw, str]] = {
    "method": (method, "method.svg"),
    "comparison": (comparison, "comparison.svg"),
    "expert-weight": (expert_weight, "expert-weight.svg"),
    "ranks": (ranks, "ranks.png"),
}


def draw(name: str, results: Path, out: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    make, file = FIGURES[name]
    with rc_context(STYLE):
        figure = Figure(layout="constrained", facecolor="white")
        title = make(results, figure)
        if name != "ranks":
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        svg = {"Title": title, "Description": (make.__doc__ or "").strip(), "Date": None}
        figure.savefig(out / file, dpi=130, metadata=svg if file.endswith(".svg") else None)


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
        draw(name, asked.results, asked.out)
    return 0


if __name__ == "__main__":
    run_program(main)
