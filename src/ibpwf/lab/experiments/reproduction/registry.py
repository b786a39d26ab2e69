"""Every table and figure of the paper as data: its runs (see `runs.py`), its measure, the findings as claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ibpwf.errors import unknown
from ibpwf.lab.experiments.reproduction import (
    embedding,
    factor_usage,
    growth,
    responses,
    runs,
    sweeps,
    tables,
    uncertainty,
)
from ibpwf.lab.experiments.reproduction.experiment import Experiment, RunSpec
from ibpwf.lab.experiments.reproduction.runs import full_run, in_table, quick_run

FIGURE_SEEDS = {"quick": 1, "full": 3}


def table_seeds(spec: RunSpec) -> RunSpec:
    """Ten seeds of IBP-WF as in the paper, on CIFAR-10 half as many; five of the baselines, there three."""
    counts = (5, 3) if spec.scenario == "split-cifar10" else (10, None)
    count = counts[spec.method != "ibpwf"]
    return replace(spec, seeds=count)


def _table(name: str, title: str, found: str, **more: Any) -> Experiment:
    pairs = in_table(name)
    made = {
        "full": tuple(table_seeds(full_run(benchmark, method)) for benchmark, method in pairs),
        "quick": tuple(quick_run(benchmark, method) for benchmark, method in pairs),
    }
    return Experiment(name, title, found, "table", made, **{"measure": tables.table_measure(name), **more})  # type: ignore[arg-type]


def _experiment(name: str, title: str, found: str, shows: str, runs: Any, measure: Any, *claims: Any) -> Experiment:
    return Experiment(name, title, found, shows, runs, measure, claims, FIGURE_SEEDS)  # type: ignore[arg-type]


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        _table(
            "table1",
            "Table 1: Split and Permuted MNIST",
            "IBP-WF is best or level among methods without replay, and near those with it.",
            claims=(tables.reproduced, tables.best_without_replay),
        ),
        _table(
            "table2",
            "Table 2: Split CIFAR-10",
            "IBP-WF is best in both settings.",
            claims=(tables.reproduced, tables.best_without_replay),
        ),
        _table(
            "table3",
            "Table 3: how often the task is inferred right",
            "Nearly always on Permuted MNIST, mostly on Split MNIST, less than half the time on CIFAR-10, where one "
            "VAE per task does no better.",
            measure=tables.task_inference_table,
            claims=(tables.reproduced,),
        ),
        _table(
            "table4",
            "Table 4: further baselines on Split and Permuted MNIST",
            "None of them comes near IBP-WF without the task.",
            claims=(tables.reproduced,),
        ),
        _experiment(
            "figure-uncertainty-class",
            "Uncertainty after each task, task inferred",
            "All the seen classes have low uncertainty compared to unseen ones.",
            "uncertainty",
            {"full": (full_run("split-mnist"),), "quick": (runs.QUICK_MNIST,)},
            uncertainty.class_uncertainty,
            uncertainty.seen_below_unseen,
            uncertainty.tells_foreign_inputs,
        ),
        _experiment(
            "figure-uncertainty-task",
            "Uncertainty under each task's parameters",
            "A task's own test set is significantly less uncertain than the others'.",
            "uncertainty",
            {"full": (full_run("split-mnist"),), "quick": (runs.QUICK_MNIST,)},
            uncertainty.task_uncertainty,
            uncertainty.seen_below_unseen,
            uncertainty.tells_foreign_inputs,
        ),
        _experiment(
            "figure-factors",
            "Expected factor scores and factor use",
            "Tasks reuse factors of earlier ones, and the rate of new factors falls with tasks.",
            "factors",
            {
                "full": (runs.CIFAR, full_run("split-mnist"), runs.TEN_PERMUTATIONS),
                "quick": (runs.QUICK_CIFAR, runs.QUICK_MNIST, quick_run("permuted-mnist")),
            },
            factor_usage.factor_usage,
            factor_usage.falls_on_cifar,
            factor_usage.new_factors_fall,
            factor_usage.later_tasks_reuse,
        ),
        _experiment(
            "figure-filters",
            "First-layer responses of ResNet-20, one image per class",
            "Feature maps in earlier tasks are similar compared to the diverse ones of later tasks.",
            "pictures",
            {"full": (runs.CIFAR,), "quick": (runs.QUICK_CIFAR,)},
            responses.responses,
            responses.later_maps_differ_more,
        ),
        _experiment(
            "figure-const-wf",
            "IBP-WF beside Const-WF(ν, ω)",
            "Better accuracy with fewer parameters, and sublinear growth.",
            "growth",
            runs.constant_runs(),
            growth.growth,
            growth.better_with_less,
            growth.none_better_with_less,
            growth.sublinear,
        ),
        _experiment(
            "figure-alpha",
            "Accuracy against α",
            "Excessively low values hurt; otherwise there is low sensitivity over a very wide range.",
            "sweep",
            runs.alpha_runs(),
            sweeps.sweep("alpha"),
            sweeps.flat_over_a_decade,
            sweeps.low_alpha_is_worse,
        ),
        _experiment(
            "figure-kappa",
            "Accuracy against κ",
            "Accuracy declines if κ is set too high with the task inferred on Split MNIST; a wide range does well.",
            "sweep",
            runs.kappa_runs(),
            sweeps.sweep("kappa"),
            sweeps.declines_when_high,
            sweeps.moderate_kappas_are_level,
        ),
        _experiment(
            "figure-tsne",
            "φ of the Permuted MNIST tasks on a plane",
            "The features across tasks are noticeably clustered.",
            "scatter",
            {"full": (runs.TEN_PERMUTATIONS,), "quick": (quick_run("permuted-mnist"),)},
            embedding.embedding,
            embedding.tasks_cluster,
        ),
    )
}


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS[name]


def chosen_experiments(name: str) -> list[Experiment]:
    """One by its name, or `all`."""
    return list(EXPERIMENTS.values()) if name == "all" else [experiment_named(name)]
