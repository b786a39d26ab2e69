"""Predictive entropy of every task's test set, after each task and under each task's parameters (appendix E).

A learner forgets nothing, so the model after task t is the last one with its later tasks left out: nothing has to be
stored on the way. Inputs of no task (clothes, noise) are scored beside them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ibpwf.inference.uncertainty import entropy
from ibpwf.lab.data.scenarios import scenario as make_scenario
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.uncertainty import auroc
from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun
from ibpwf.learner import Learner
from ibpwf.method import IBPWF

DRAWS = 100
BINS = 24
QUICK_ROWS = 200


def foreign_sets(stream: Scenario, rows: int, seed: int) -> dict[str, Tensor]:
    """Inputs of no task: Fashion-MNIST's test images, and noise with the mean and spread of a normalised image."""
    pixels = stream.input_shape
    noise = torch.randn(rows, *pixels, generator=torch.Generator().manual_seed(seed))
    clothes = torch.cat([task.test.x for task in make_scenario("split-fashion-mnist")])
    picked = torch.randperm(len(clothes), generator=torch.Generator().manual_seed(seed))[:rows]
    return {"Fashion-MNIST": clothes[picked], "noise": noise}


def test_sets(stream: Scenario, most: int | None, seed: int) -> dict[str, Tensor]:
    """Every task's test images by the task's name, then the foreign ones; `most` rows of each."""
    sets = {task.name: task.test.x[:most] for task in stream}
    return sets | foreign_sets(stream, most or 2000, seed)


def class_probabilities(learner: Learner, x: Tensor, posterior_samples: int) -> list[Tensor]:
    """ρ_t: each task's class probabilities, averaged over posterior draws."""
    found, columns = [], [task for task, _ in learner.method.class_columns()]
    for task in range(len(learner.tasks)):
        own = torch.tensor([owner == task for owner in columns], device=learner.device)
        found.append(learner.predict(x, task=task, posterior_samples=posterior_samples).probabilities[:, own])
    return found


def entropies_after(learner: Learner, x: Tensor, rho: Sequence[Tensor], tasks: int) -> Tensor:
    """Entropy of Σ_t' ρ_t' P(t'|φ(x)) over the first `tasks` tasks (eq. entropy_incr_class)."""
    method = learner.method
    assert isinstance(method, IBPWF)
    phi = torch.cat([method.features(rows) for rows in torch.split(x.to(learner.device), 4096)])
    weights = method.inference.log_scores(phi)[:, :tasks].softmax(1)
    return entropy(torch.cat([p * weights[:, t : t + 1] for t, p in enumerate(rho[:tasks])], dim=1))


def described(name: str, kind: str, values: Sequence[Tensor], high: float) -> dict[str, Any]:
    """A set's entropies over all seeds: quartiles, a histogram to draw, and each seed's mean."""
    pooled = torch.cat([v.double().cpu() for v in values])
    marks = torch.quantile(pooled, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64))
    counts = torch.histc(pooled, bins=BINS, min=0.0, max=high)
    per_seed = [float(v.mean()) for v in values]
    return {
        "name": name,
        "kind": kind,
        "mean": statistics.fmean(per_seed),
        "per_seed": per_seed,
        "quantiles": [float(mark) for mark in marks],
        "histogram": [int(count) for count in counts],
    }


def _panels(
    run: FinishedRun, conditions: Conditions, *, per_task: bool
) -> tuple[list[str], float, list[dict[str, list[Tensor]]]]:
    """Per panel, every set's entropies seed by seed."""
    most = QUICK_ROWS if conditions.budget == "quick" else None
    names = [task["name"] for task in run.result["tasks"]]
    panels: list[dict[str, list[Tensor]]] = [{} for _ in names]
    classes = 1
    for seed in run.result["seeds"]:
        learner = Learner.load(run.folder / f"seed-{seed}" / "model", device=conditions.device)
        stream = run.stream(seed)
        counts = [len(task.classes) for task in learner.tasks]
        classes = max(counts) if per_task else sum(counts)
        for name, x in test_sets(stream, most, seed).items():
            rho = class_probabilities(learner, x, DRAWS)
            for t, panel in enumerate(panels):
                value = entropy(rho[t]) if per_task else entropies_after(learner, x, rho, t + 1)
                panel.setdefault(name, []).append(value.cpu())
    return names, math.log(classes), panels


def _measured(run: FinishedRun, conditions: Conditions, *, per_task: bool) -> dict[str, Any]:
    names, high, panels = _panels(run, conditions, per_task=per_task)
    shown = []
    for t, panel in enumerate(panels):
        kinds = {
            name: "foreign" if name not in names else "seen" if _known(names.index(name), t, per_task) else "unseen"
            for name in panel
        }
        seeds = range(len(run.result["seeds"]))
        scores = {}
        seen = [torch.cat([panel[name][s] for name in panel if kinds[name] == "seen"]) for s in seeds]
        others = {"unseen tasks": [name for name in panel if kinds[name] == "unseen"]}
        others |= {name: [name] for name in panel if kinds[name] == "foreign"}
        for title, members in others.items():
            if members:
                pairs = [(seen[s], torch.cat([panel[name][s] for name in members])) for s in seeds]
                scores[title] = statistics.fmean(auroc(low, above) for low, above in pairs)
        sets = [described(name, kinds[name], values, high) for name, values in panel.items()]
        shown.append({"task": names[t], "sets": sets, "auroc": scores})
    return {
        "benchmark": run.spec.benchmark,
        "ran": run.spec.scenario,
        "draws": DRAWS,
        "highest": high,
        "per_task": per_task,
        "panels": shown,
        "command": run.result["command"],
    }


def _known(task: int, panel: int, per_task: bool) -> bool:
    """Whether a task's inputs belong to a panel: its own parameters, or a model that has learnt it."""
    return task == panel if per_task else task <= panel


def class_uncertainty(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """After each task, the task unknown."""
    return _measured(runs[0], conditions, per_task=False)


def task_uncertainty(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """Under each task's parameters."""
    return _measured(runs[0], conditions, per_task=True)


def _gap(panel: dict[str, Any]) -> tuple[float, float] | None:
    seen = [s["mean"] for s in panel["sets"] if s["kind"] == "seen"]
    unseen = [s["mean"] for s in panel["sets"] if s["kind"] == "unseen"]
    return (max(seen), min(unseen)) if seen and unseen else None


def seen_below_unseen(measured: dict[str, Any]) -> Claim:
    """The highest mean entropy of a known task's test set is below the lowest of any other's, in every panel."""
    numbers = {}
    for panel in measured["panels"]:
        found = _gap(panel)
        if found is not None:
            numbers[panel["task"]] = {"highest known": found[0], "lowest unknown": found[1]}
    fine = sum(number["highest known"] < number["lowest unknown"] for number in numbers.values())
    panels = len(measured["panels"])
    when = (
        f"under each of the {panels} tasks' parameters" if measured["per_task"] else f"after each of {panels} tasks"
    )
    left = "" if len(numbers) == panels else " (after the last none is left to come)"
    statement = (
        f"Mean entropy is lower for every known task than for any other {when}{left}: so in {fine} of {len(numbers)} "
        "cases"
    )
    if numbers:
        task, least = min(numbers.items(), key=lambda item: item[1]["lowest unknown"] - item[1]["highest known"])
        statement += (
            f", the closest {least['highest known']:.3f} against {least['lowest unknown']:.3f} nats "
            f"({'with' if measured['per_task'] else 'after'} task {task})"
        )
    statement += "."
    return Claim(statement, numbers, bool(numbers) and fine == len(numbers))


def tells_foreign_inputs(measured: dict[str, Any]) -> Claim:
    """Not in the paper, which leaves it to future work: entropy ranks foreign inputs above known ones."""
    names = list(dict.fromkeys(name for panel in measured["panels"] for name in panel["auroc"]))
    numbers = {
        name: statistics.fmean(panel["auroc"][name] for panel in measured["panels"] if name in panel["auroc"])
        for name in names
    }
    shown = ", ".join(f"{value:.1f} % for {name}" for name, value in numbers.items())
    statement = f"Entropy tells inputs it has not learnt from those it has (mean AUROC above 50 %: {shown})."
    return Claim(statement, numbers, bool(numbers) and min(numbers.values()) > 50)
