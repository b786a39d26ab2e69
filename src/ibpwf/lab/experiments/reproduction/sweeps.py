"""Accuracy against one setting: the ablations on α and κ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun, Measure
from ibpwf.lab.experiments.reproduction.levels import above

FLAT = 2.0
"""Points between best and worst that still count as flat."""


def sweep(setting: str) -> Measure:
    """Accuracy in both settings for each value, scenario by scenario."""

    def measure(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
        panels = []
        for benchmark in dict.fromkeys(run.spec.benchmark for run in runs):
            mine = [run for run in runs if run.spec.benchmark == benchmark]
            points: list[dict[str, Any]] = [
                {
                    "value": float(run.result["settings"][setting]),
                    "task": run.result["accuracy"]["task"],
                    "class": run.result["accuracy"]["class"],
                    "command": run.result["command"],
                }
                for run in mine
            ]
            points.sort(key=lambda point: float(point["value"]))
            panels.append({"benchmark": benchmark, "ran": mine[0].spec.scenario, "points": points})
        return {"setting": setting, "panels": panels}

    return measure


def _best(points: Sequence[dict[str, Any]], setting: str) -> dict[str, Any]:
    return max(points, key=lambda point: float(point[setting]["mean"]))


def _means(panel: dict[str, Any], setting: str) -> list[tuple[float, float]]:
    return [(point["value"], point[setting]["mean"]) for point in panel["points"]]


def flattest_decade(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """The decade of values over which the accuracy changes least: its ends, and best minus worst; None if the
    values do not span one."""
    found = []
    for low, _ in points:
        inside = [(value, accuracy) for value, accuracy in points if low <= value <= 10 * low * (1 + 1e-9)]
        if len(inside) > 1 and inside[-1][0] >= 10 * low * (1 - 1e-9):
            accuracies = [accuracy for _, accuracy in inside]
            found.append((max(accuracies) - min(accuracies), low, inside[-1][0]))
    if not found:
        return None
    change, low, high = min(found)
    return low, high, change


def flat_over_a_decade(measured: dict[str, Any]) -> Claim:
    numbers = {}
    for panel in measured["panels"]:
        for setting in ("task", "class"):
            found = flattest_decade(_means(panel, setting))
            numbers[f"{panel['ran']}, {setting}"] = (
                None if found is None else {"from": found[0], "to": found[1], "change": found[2]}
            )
    known = [number for number in numbers.values() if number is not None]
    worst = max((number["change"] for number in known), default=float("nan"))
    statement = f"Over some decade of α the accuracy changes by at most {FLAT:g} points (at most {worst:.2f} here)."
    return Claim(statement, numbers, bool(known) and len(known) == len(numbers) and worst <= FLAT)


def low_alpha_is_worse(measured: dict[str, Any]) -> Claim:
    """Too few factors to learn each task: the best is above the lowest α by more than seeds differ."""
    numbers, held = {}, True
    for panel in measured["panels"]:
        lowest, best = panel["points"][0], _best(panel["points"], "class")
        numbers[panel["ran"]] = {
            "alpha": lowest["value"],
            "lowest": lowest["class"]["mean"],
            "best": best["class"]["mean"],
        }
        held = held and above(best["class"], lowest["class"])
    shown = ", ".join(
        f"{n['lowest']:.2f} at α = {n['alpha']:g} against {n['best']:.2f} on {name}" for name, n in numbers.items()
    )
    return Claim(f"The lowest α is worse than the best, task inferred ({shown}).", numbers, held)


MODERATE = 0.7
"""The highest κ that is not high."""


def declines_when_high(measured: dict[str, Any]) -> Claim:
    """On Split MNIST with the task inferred a κ near 1 keeps too few factors: the highest κ is below the best of the
    moderate ones by more than seeds differ."""
    panel = next(panel for panel in measured["panels"] if panel["benchmark"] == "split-mnist")
    moderate = [point for point in panel["points"] if point["value"] <= MODERATE]
    last = panel["points"][-1]
    if not moderate or last in moderate:
        return Claim(f"No κ on both sides of {MODERATE:g} was run.", {}, False)
    best = _best(moderate, "class")
    numbers = {
        "highest kappa": last["value"],
        "accuracy there": last["class"]["mean"],
        "best moderate kappa": best["value"],
        "best moderate accuracy": best["class"]["mean"],
    }
    statement = (
        f"With κ set high the accuracy falls, task inferred, {panel['ran']}: {last['class']['mean']:.2f} at "
        f"κ = {last['value']:g}, {best['class']['mean']:.2f} at κ = {best['value']:g}, the best up to {MODERATE:g}."
    )
    return Claim(statement, numbers, above(best["class"], last["class"]))


def moderate_kappas_are_level(measured: dict[str, Any]) -> Claim:
    """'A wide range of settings of κ give good performance': over all moderate ones it changes little."""
    numbers = {}
    for panel in measured["panels"]:
        for setting in ("task", "class"):
            inside = [accuracy for value, accuracy in _means(panel, setting) if value <= MODERATE]
            numbers[f"{panel['ran']}, {setting}"] = max(inside) - min(inside) if len(inside) > 1 else None
    known = [number for number in numbers.values() if number is not None]
    worst = max(known, default=float("nan"))
    statement = f"Over all κ up to {MODERATE:g} the accuracy changes by at most {FLAT:g} points ({worst:.2f} here)."
    return Claim(statement, numbers, bool(known) and len(known) == len(numbers) and worst <= FLAT)
