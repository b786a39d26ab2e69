"""What a trained network's first layer gives for one image of every class, as pictures."""

from __future__ import annotations

import base64
import io
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.data.catalog import DATA_SETS
from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun
from ibpwf.learner import Learner

SIDE = 4
GAP = 2


def png(pixels: Tensor) -> str:
    """A gray picture, values 0 to 1, as the base64 text of a PNG file."""
    from PIL import Image

    rows = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(rows.numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def grid(maps: Tensor) -> Tensor:
    """The first sixteen maps, 4×4, each stretched to its own range."""
    height, width = maps.shape[1:]
    picture = torch.ones(SIDE * (height + GAP) - GAP, SIDE * (width + GAP) - GAP)
    for k, one in enumerate(maps[: SIDE * SIDE]):
        low, high = float(one.min()), float(one.max())
        top, left = (k // SIDE) * (height + GAP), (k % SIDE) * (width + GAP)
        picture[top : top + height, left : left + width] = (one - low) / ((high - low) or 1.0)
    return picture


def similarity(maps: Tensor) -> float:
    """Mean absolute correlation between the maps of one image, all pairs."""
    flat = maps.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    flat = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    pairs = (flat @ flat.T).abs()
    count = len(flat)
    return float((pairs.sum() - pairs.diagonal().sum()) / (count * (count - 1)))


def responses(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """One picture per class, and how alike the maps of each task's test images are, over all seeds."""
    run = runs[0]
    pictures: list[dict[str, Any]] = []
    per_task: list[list[float]] = [[] for _ in run.result["tasks"]]
    layer = ""
    names = DATA_SETS[run.spec.scenario.partition("-")[2]].classes
    for seed in run.result["seeds"]:
        learner = Learner.load(run.folder / f"seed-{seed}" / "model", device=conditions.device)
        layer = next(iter(learner.model.layers))
        module = learner.model.net.get_submodule(layer)
        if not isinstance(module, torch.nn.Conv2d):
            raise InputError(f"the first layer '{layer}' is no convolution; its responses are no pictures.")
        for task in run.stream(seed):
            state = learner.model.state(task.index)
            weight = state[learner.model.weights[layer].parameter]
            some = task.test.x[:100].to(learner.device)
            given = F.conv2d(some, weight, state.get(f"{layer}.bias"), module.stride, module.padding).cpu()
            per_task[task.index].append(statistics.fmean(similarity(maps) for maps in given))
            if seed != run.result["seeds"][0]:
                continue
            for label in task.classes:
                place = int((task.test.y[:100] == label).nonzero()[0])
                active = learner.model.use(task.index)[layer].active
                picture = {"task": task.name, "class": label, "label": names[label], "active": active}
                pictures.append({**picture, "png": png(grid(given[place]))})
    tasks = [
        {"task": task["name"], "similarity": statistics.fmean(values)}
        for task, values in zip(run.result["tasks"], per_task, strict=True)
    ]
    return {
        "benchmark": run.spec.benchmark,
        "ran": run.spec.scenario,
        "layer": layer,
        "pictures": pictures,
        "tasks": tasks,
        "command": run.result["command"],
    }


def later_maps_differ_more(measured: dict[str, Any]) -> Claim:
    """The paper: maps of earlier tasks are similar, those of later ones diverse."""
    first, last = measured["tasks"][0]["similarity"], measured["tasks"][-1]["similarity"]
    statement = (
        "Feature maps differ more in later tasks: the mean |correlation| between the maps of an image is "
        f"{first:.3f} for the first task and {last:.3f} for the last."
    )
    return Claim(statement, {task["task"]: task["similarity"] for task in measured["tasks"]}, last < first)
