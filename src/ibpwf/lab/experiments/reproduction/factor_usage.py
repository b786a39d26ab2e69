"""Expected factor scores of the first layer, and how many factors each task uses, adds and takes over."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from ibpwf.factors.prior import IBP
from ibpwf.factors.sticks import expected_total
from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun
from ibpwf.learner import Learner

PARTS = ("active", "new", "reused", "total")


def expected_scores(learner: Learner, layer: str) -> list[list[float]]:
    """E[λ_t] = r ⊙ π̄ per task, every factor of the dictionary as it stood then, in stick order."""
    rows = []
    for task in learner.model.tasks:
        vectors = task.vectors[layer]
        used = learner.model.prior.logit(vectors).sigmoid()
        rows.append([round(float(v), 5) for v in (vectors.strength * used).tolist()])
    return rows


def factor_usage(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """Per scenario: the scores of the first seed's first layer, and each layer's use as a mean over seeds."""
    panels = []
    for run in runs:
        seed = run.result["seeds"][0]
        learner = Learner.load(run.folder / f"seed-{seed}" / "model", device=conditions.device)
        layer = next(iter(learner.model.layers))
        prior = learner.model.prior
        assert isinstance(prior, IBP)
        per_seed = [entry["per_task"] for entry in run.result["factors"]]
        tasks = len(run.result["tasks"])
        layers = {}
        for name, dictionary in learner.model.layers.items():
            alpha = prior.alpha_of(dictionary.shape)
            layers[name] = {
                "alpha": alpha,
                "per_task": [
                    {part: statistics.fmean(seed_[t][name][part] for seed_ in per_seed) for part in PARTS}
                    for t in range(tasks)
                ],
                "harmonic": [expected_total(alpha, t) for t in range(1, tasks + 1)],
            }
        panels.append(
            {
                "benchmark": run.spec.benchmark,
                "ran": run.spec.scenario,
                "tasks": [task["name"] for task in run.result["tasks"]],
                "seed": seed,
                "layer": layer,
                "scores": expected_scores(learner, layer),
                "selected": [task.selected[layer].nonzero().flatten().tolist() for task in learner.model.tasks],
                "opened": [block.positions.tolist() for block in learner.model.layers[layer].blocks],
                "layers": layers,
                "command": run.result["command"],
            }
        )
    return {"panels": panels}


def new_per_task(panel: dict[str, Any]) -> list[float]:
    """How many factors each task added, all layers together, mean over seeds."""
    layers = panel["layers"].values()
    return [sum(layer["per_task"][t]["new"] for layer in layers) for t in range(len(panel["tasks"]))]


def falls_on_cifar(measured: dict[str, Any]) -> Claim:
    """'The rate of allocating a new factor decreases with tasks' on Split CIFAR-10, whose ResNet-20 has so many
    layers that chance hardly matters: each task adds fewer than the one before it."""
    found = [new_per_task(panel) for panel in measured["panels"] if panel["benchmark"] == "split-cifar10"]
    if not found:
        return Claim("New factors per task on Split CIFAR-10: not run.", {}, False)
    new = found[0]
    statement = f"New factors per task fall on Split CIFAR-10, each task fewer than the one before: {_listed(new)}."
    return Claim(statement, {"new": new}, all(later < earlier for earlier, later in itertools.pairwise(new)))


def new_factors_fall(measured: dict[str, Any]) -> Claim:
    """The same of every scenario, where each task adds fewer than the tasks before it did on average. That each adds
    fewer than its predecessor would ask more of a small network than the IBP promises, whose numbers of new factors
    are Poisson draws around α/t."""
    numbers = {panel["ran"]: new_per_task(panel) for panel in measured["panels"]}
    held = all(new[t] < statistics.fmean(new[:t]) for new in numbers.values() for t in range(1, len(new)))
    shown = "; ".join(f"{name}: {_listed(new)}" for name, new in numbers.items())
    statement = f"The rate of new factors falls: every task adds fewer than those before it did on average ({shown})."
    return Claim(statement, numbers, held)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.3g}" if number < 1000 else f"{number:,.0f}" for number in numbers)


def later_tasks_reuse(measured: dict[str, Any]) -> Claim:
    """Most of what a later task uses was there already."""
    numbers = {}
    for panel in measured["panels"]:
        last = [layer["per_task"][-1] for layer in panel["layers"].values()]
        active = sum(use["active"] for use in last)
        numbers[panel["ran"]] = 100.0 * sum(use["reused"] for use in last) / active if active else 0.0
    shown = ", ".join(f"{share:.1f} % on {name}" for name, share in numbers.items())
    statement = f"More than half of the factors that the last task uses were locked by earlier ones ({shown})."
    return Claim(statement, numbers, min(numbers.values()) > 50)
