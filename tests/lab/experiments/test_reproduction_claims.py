"""Claims of the paper on numbers: when they hold, and when they do not."""

from __future__ import annotations

import numpy as np
import pytest

from ibpwf.lab.experiments.paper import targets
from ibpwf.lab.experiments.reproduction import factor_usage, growth, sweeps, tables, uncertainty
from ibpwf.lab.experiments.reproduction.levels import above, level_within


def test_seen_below_unseen_holds_only_if_it_does_in_every_panel() -> None:
    def panel(task: str, seen: float, unseen: float) -> dict:
        return {"task": task, "sets": [{"kind": "seen", "mean": seen}, {"kind": "unseen", "mean": unseen}]}

    measured = {"per_task": False, "panels": [panel("a", 0.1, 0.3), panel("b", 0.2, 0.3)]}
    assert uncertainty.seen_below_unseen(measured).held
    measured["panels"][1] = panel("b", 0.4, 0.3)
    claim = uncertainty.seen_below_unseen(measured)
    assert not claim.held
    assert "1 of 2" in claim.statement
    assert "0.400 against 0.300 nats (after task b)" in claim.statement
    last = {"task": "c", "sets": [{"kind": "seen", "mean": 0.1}]}
    assert (
        "after each of 3 tasks (after the last none"
        in uncertainty.seen_below_unseen({**measured, "panels": [*measured["panels"], last]}).statement
    )


def _sweep(accuracies: dict[float, float]) -> dict:
    points = [{"value": v, "task": {"mean": a}, "class": {"mean": a}} for v, a in accuracies.items()]
    return {"panels": [{"benchmark": "split-mnist", "ran": "split-mnist", "points": points}]}


def test_flatness_is_judged_over_the_best_decade() -> None:
    assert sweeps.flat_over_a_decade(_sweep({1: 50, 20: 90, 100: 91, 200: 90.5})).held
    assert not sweeps.flat_over_a_decade(_sweep({1: 50, 20: 90, 100: 95, 200: 90.5})).held
    assert not sweeps.flat_over_a_decade(_sweep({20: 90, 100: 90})).held  # no decade was run
    assert sweeps.low_alpha_is_worse(_sweep({1: 50, 20: 90})).held
    assert not sweeps.low_alpha_is_worse(_sweep({1: 90, 20: 80})).held


def test_a_decline_at_high_kappa_is_seen_if_it_is_more_than_seeds_differ() -> None:
    assert sweeps.declines_when_high(_sweep({0.3: 92, 0.5: 91, 0.99: 80})).held
    assert not sweeps.declines_when_high(_sweep({0.3: 90, 0.5: 91, 0.99: 92})).held
    assert not sweeps.declines_when_high(_sweep({0.3: 92, 0.5: 91, 0.99: 91.95})).held
    noisy = _sweep({0.3: 92, 0.99: 91})
    for point in noisy["panels"][0]["points"]:
        point["class"] |= {"std": 2.0, "per_seed": [0.0] * 4}  # standard errors of 1
    assert not sweeps.declines_when_high(noisy).held
    assert not sweeps.declines_when_high(_sweep({0.3: 92, 0.5: 80})).held  # no high one was run


def test_moderate_kappas_are_level_if_all_of_them_are() -> None:
    assert sweeps.moderate_kappas_are_level(_sweep({0.1: 92, 0.5: 91, 0.7: 92.5, 0.99: 20})).held
    assert not sweeps.moderate_kappas_are_level(_sweep({0.1: 89, 0.5: 92, 0.99: 92})).held
    assert not sweeps.moderate_kappas_are_level(_sweep({0.5: 92, 0.99: 92})).held  # nothing to compare


def test_means_of_more_seeds_are_level_within_less() -> None:
    def spread(mean: float, seeds: int) -> dict:
        return {"mean": mean, "std": 0.3, "per_seed": [mean] * seeds}

    assert level_within(spread(99, 9), spread(98, 9)) == pytest.approx(2 * np.hypot(0.1, 0.1))
    assert above(spread(99.0, 9), spread(98.7, 9))
    assert not above(spread(99.0, 1), spread(98.7, 1))
    assert level_within({"mean": 99.0}, {"mean": 98.0}) == 0.1


def test_ibpwf_must_be_as_accurate_and_no_larger_than_each_const_wf() -> None:
    def line(method: str, accuracy: float, size: float, std: float | None = None) -> dict:
        task = [{"mean": accuracy, "std": std}] * 3
        return {"method": method, "label": method, "task": task, "parameters": [size / 2, size * 0.9, size]}

    def held(*lines: dict) -> tuple[bool, bool]:
        measured = {"panels": [{"ran": "split-mnist", "lines": list(lines)}]}
        return growth.better_with_less(measured).held, growth.none_better_with_less(measured).held

    ours = line("ibpwf", 99.6, 100)
    assert held(ours, line("const-wf", 99.65, 120)) == (True, True)
    assert held(ours, line("const-wf", 99.8, 120)) == (False, True)
    assert held(ours, line("const-wf", 99.8, 120, std=0.15)) == (True, True)  # another seed may turn it round
    assert held(ours, line("const-wf", 99.5, 80)) == (False, True)
    assert held(ours, line("const-wf", 99.8, 80)) == (False, False)


def test_growth_is_measured_against_a_straight_line() -> None:
    def held(*sizes: float) -> bool:
        return growth.sublinear({"panels": [{"ran": "x", "lines": [{"method": "ibpwf", "parameters": sizes}]}]}).held

    assert held(100, 120, 135, 152)
    assert not held(100, 120, 140, 160)


def test_new_factors_fall_if_every_task_adds_fewer_than_the_average_so_far() -> None:
    def held(*new: float) -> bool:
        panel = {"ran": "x", "tasks": list(new), "layers": {"a": {"per_task": [{"new": n} for n in new]}}}
        return factor_usage.new_factors_fall({"panels": [panel]}).held

    assert held(276, 16, 15, 3, 13)
    assert not held(20, 16, 25)
    assert not held(10, 10)


def test_on_cifar_every_task_must_add_fewer_factors_than_the_one_before() -> None:
    def held(*new: float, benchmark: str = "split-cifar10") -> bool:
        layers = {name: {"per_task": [{"new": n / 2} for n in new]} for name in ("stem", "block")}
        panel = {"benchmark": benchmark, "tasks": list(new), "layers": layers}
        return factor_usage.falls_on_cifar({"panels": [panel]}).held

    assert held(800, 300, 120, 60, 20)
    assert not held(276, 16, 15, 3, 13)
    assert not held(3, 2, benchmark="split-mnist")


def test_table_rows_are_judged_at_full_size_only() -> None:
    paper = next(t for t in targets() if (t.benchmark, t.method, t.setting) == ("split-mnist", "ibpwf", "class"))
    made = {"scenario": "split-mnist", "seeds": [0], "command": "c", "commit": "d"}
    ours = {"mean": 92.0, "std": None}
    row = tables.table_row(paper, ours, made, judged=True)
    assert row["reproduces"] is True
    assert row["difference"] == pytest.approx(92.0 - paper.mean)
    assert tables.reproduced({"rows": [row]}).held
    quick = tables.table_row(paper, ours, made, judged=False)
    assert quick["reproduces"] is None
    assert not tables.reproduced({"rows": [quick]}).held
