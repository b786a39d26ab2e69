"""How many factors each task took in each layer of a trained network, drawn from a result file.

python -m tools.ranks_figure docs/results/trained-networks/cifar10.json -o docs/images/ranks.png
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json

PARTS = {"0": "expand", "2": "project"}
"""Of a block's layers by their numbers; in a block that does not expand, the first is within channels."""


def layer_title(name: str) -> str:
    """A layer of an inverted residual network in words: `4.1 expand` is the first of block 1 in stage 4."""
    found = re.fullmatch(r".*levels\.(\d+)\.(\d+)\.layers\.(\d+)\.conv", name)
    if found:
        stage, block, part = found.groups()
        return f"{int(stage) + 1}.{int(block) + 1} {PARTS.get(part, 'project')}"
    return "stem" if ".stem." in name else "last" if re.fullmatch(r".*levels\.\d+\.conv", name) else name


def tables(run: Mapping[str, Any]) -> tuple[list[str], list[str], list[list[list[int]]]]:
    """Tasks, layers, and for each of both panels the numbers of every task and layer: in use, and new."""
    layers = list(run["added"][0]["ranks"])
    tasks = [task["name"] for task in run["tasks"]]
    panels = [[[task[kind][layer] for layer in layers] for task in run["added"]] for kind in ("ranks", "new")]
    return tasks, [layer_title(name) for name in layers], panels


def draw(run: Mapping[str, Any], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks, layers, panels = tables(run)
    most = max(max(map(max, panel)) for panel in panels)
    figure, axes = pyplot.subplots(2, 1, figsize=(11, 2.6 + 0.5 * len(tasks)), sharex=True, layout="constrained")
    image = None
    for axis, panel, title in zip(axes, panels, ("factors that a task reads", "of these, new"), strict=True):
        image = axis.imshow(panel, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_yticks(range(len(tasks)), [f"classes {name}" for name in tasks], fontsize=8)
        for row, numbers in enumerate(panel):
            for column, number in enumerate(numbers):
                color = "white" if number > most / 2 else "black"
                axis.text(column, row, str(number), ha="center", va="center", fontsize=7, color=color)
    axes[-1].set_xticks(range(len(layers)), layers, rotation=90, fontsize=7)
    axes[-1].set_xlabel("layer: stage.block, from the image to the features", fontsize=8)
    assert image is not None
    figure.colorbar(image, ax=axes, shrink=0.6)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.ranks_figure", description=about)
    parser.add_argument("result", type=Path, metavar="FILE")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    runs = read_json(given.result)["runs"] if given.result.is_file() else []
    run = next((run for run in runs if run["seed"] == given.seed and "added" in run), None)
    if run is None:
        sys.stderr.write(f"error: {given.result} has no ranks of seed {given.seed} to draw.\n")
        return 2
    draw(run, given.out)
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
