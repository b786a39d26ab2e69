"""Router and experts as one answer, against plain loops over rows and classes, and SciPy's search for the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.fusion import (
    DOUBT,
    EXPERT_WEIGHT,
    GRID,
    PRIOR_ROWS,
    RATES,
    ROUTER_WEIGHT,
    Calibration,
    Scores,
    asked,
    by_task,
    calibrate,
    expert_weight,
    limit,
    look,
    novelty,
    weights,
)

WIDTHS = (2, 3, 1, 2)
STARTS = (0, 2, 5, 6)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores_of_the_newest_task(rows: int, seed: int, *, noise: float = 1.0) -> tuple[Scores, Tensor]:
    """r and e in which the rows' classes, those of the last task, stand out as far as the noise lets them."""
    y = torch.randint(WIDTHS[-1], (rows,), generator=torch.Generator().manual_seed(seed + 1))
    router, experts = (noise * normal(rows, sum(WIDTHS), seed=seed + k) for k in (2, 3))
    here = torch.arange(rows), STARTS[-1] + y
    router[here] += 1.5
    experts[here] += 3.0
    return Scores(router, experts, WIDTHS), y


def penalized_loss(chosen: Sequence[float], parts: Sequence[Tensor], usual: Sequence[float], column: Tensor) -> float:
    """−log P of the rows' own classes, row by row, and as much for each weight as `PRIOR_ROWS` rows would say."""
    total = 0.0
    for row, own in enumerate(column.tolist()):
        joint = sum(weight * part[row].numpy() for weight, part in zip(chosen, parts, strict=True))
        total -= joint[own] - special.logsumexp(joint)
    pull = sum((weight / start - 1) ** 2 for weight, start in zip(chosen, usual, strict=True))
    return float(total + 0.5 * PRIOR_ROWS * pull)


# Weights


@pytest.mark.parametrize(("rows", "noise"), [(3, 1.0), (40, 1.0), (80, 3.0), (20, 0.1)])
def test_the_weights_are_those_of_the_largest_likelihood(rows: int, noise: float) -> None:
    scores, y = scores_of_the_newest_task(rows, seed=rows, noise=noise)
    assert scores.experts is not None
    found = calibrate(scores, scores.experts[:, -2:], y)
    assert found.router is not None and found.experts is not None  # noqa: PT018
    parts, column = [scores.router, scores.experts], STARTS[-1] + y

    def loss(chosen: Sequence[float]) -> float:
        return penalized_loss(chosen, parts, (ROUTER_WEIGHT, EXPERT_WEIGHT), column)

    grid = (slice(0.05, 4, 0.8), slice(0.0, 4, 0.8))
    best = optimize.brute(loss, grid, finish=optimize.fmin)
    assert loss((found.router, found.experts)) <= loss(best) + 1e-4
    np.testing.assert_allclose((found.router, found.experts), np.maximum(best, (1e-3, 0)), rtol=0.01, atol=0.01)


def test_a_router_alone_has_a_weight_of_its_own_and_experts_have_none() -> None:
    scores, y = scores_of_the_newest_task(60, seed=4)
    alone = calibrate(Scores(scores.router, None, WIDTHS), normal(60, 2), y)

    def loss(weight: float) -> float:
        return penalized_loss([weight], [scores.router], [ROUTER_WEIGHT], STARTS[-1] + y)

    best = optimize.minimize_scalar(loss, bounds=(1e-3, 20), method="bounded").x
    assert alone.router == pytest.approx(best, rel=1e-3)
    assert (alone.experts, alone.classes) == (0.0, sum(WIDTHS))


def test_the_temperature_is_that_of_the_largest_likelihood_of_the_tasks_own_scores() -> None:
    for sharper in (0.2, 1.0, 5.0):
        own, y = sharper * normal(200, 3, seed=5), normal(200, 3, seed=6).argmax(1)
        own[torch.arange(200), y] += sharper
        found = calibrate(None, own, y)
        divided = own.numpy(), y.tolist()

        def loss(temperature: float, own: np.ndarray = divided[0], y: list[int] = divided[1]) -> float:
            log_p = special.log_softmax(own / temperature, axis=1)
            return float(-sum(log_p[row, label] for row, label in enumerate(y)) + 0.5 * (1 / temperature - 1) ** 2)

        best = optimize.minimize_scalar(loss, bounds=(0.01, 20), method="bounded").x
        assert found.temperature == pytest.approx(best, rel=1e-3)
        assert (found.router, found.experts, found.limits, found.classes) == (None, None, None, 0)


@pytest.mark.parametrize("far", [1.0, 30.0, 1e4])
def test_rows_that_are_told_apart_with_ease_give_finite_weights(far: float) -> None:
    """Their likelihood alone only grows with the weights."""
    y = torch.arange(50) % 2
    router = torch.zeros(50, sum(WIDTHS), dtype=torch.float64)
    router[torch.arange(50), STARTS[-1] + y] = far
    found = calibrate(Scores(router, router.clone(), WIDTHS), router[:, -2:], y)
    assert found.router is not None and found.experts is not None  # noqa: PT018
    assert ROUTER_WEIGHT <= found.router < 20
    assert EXPERT_WEIGHT <= found.experts < 20
    assert 0.05 < found.temperature <= 1


def test_scores_that_mislead_are_given_next_to_no_weight() -> None:
    scores, y = scores_of_the_newest_task(300, seed=7)
    assert scores.experts is not None
    misleading = Scores(scores.router, -scores.experts, WIDTHS)
    found = calibrate(misleading, -scores.experts[:, -2:], y)
    assert found.experts == 0.0
    assert found.router is not None
    assert found.router > 0.5
    assert found.temperature > 5


def test_one_class_in_all_says_nothing_and_the_usual_weights_stay() -> None:
    one = Scores(normal(9, 1), normal(9, 1, seed=1), (1,))
    found = calibrate(one, normal(9, 1), torch.zeros(9, dtype=torch.long))
    assert (found.router, found.experts, found.temperature) == (ROUTER_WEIGHT, EXPERT_WEIGHT, 1.0)


def fitted(router: float, experts: float, classes: int) -> Calibration:
    limits = tuple(float(place) for place in range(len(RATES)))
    return Calibration(1.0, router, experts, classes, limits, losses=tuple((w - experts) ** 2 for w in GRID))


def test_the_routers_weight_is_the_newest_tasks_and_the_experts_the_likeliest_given_all_tasks_rows() -> None:
    scores, labels, calibrations = [], [], []
    for seed, noise in ((31, 0.5), (32, 2.0), (33, 4.0)):
        mine, y = scores_of_the_newest_task(150, seed=seed, noise=noise)
        assert mine.experts is not None
        calibrations.append(calibrate(mine, mine.experts[:, -2:], y, calibrations))
        scores.append(mine)
        labels.append(STARTS[-1] + y)

    def loss(experts: float) -> float:
        total = 0.5 * PRIOR_ROWS * (experts / EXPERT_WEIGHT - 1) ** 2
        for mine, y in zip(scores, labels, strict=True):
            router, expert = mine.router.double().numpy(), mine.experts.double().numpy()  # type: ignore[union-attr]

            def of(alpha: float, r: np.ndarray = router, e: np.ndarray = expert, y: Tensor = y) -> float:
                log_p = special.log_softmax(alpha * r + experts * e, axis=1)
                return float(-sum(log_p[row, label] for row, label in enumerate(y.tolist())))

            total += optimize.minimize_scalar(of, bounds=(1e-3, 20), method="bounded").fun
        return total

    best = optimize.minimize_scalar(loss, bounds=(0, 4), method="bounded")
    router, experts = weights([None, *calibrations, None, Calibration(3.0)])
    assert router == calibrations[-1].router
    assert experts == pytest.approx(best.x, rel=0.1)
    assert loss(experts) < best.fun + 0.2
    each = [one.experts or 0.0 for one in calibrations]
    assert min(each) < experts < max(each)


def test_one_task_whose_rows_experts_mislead_counts_by_how_much_less_likely_they_make_them() -> None:
    """The mean of 1, 1 and 0 would be 0.67."""
    indifferent = Calibration(1.0, 1.0, 1.0, 2, losses=tuple(0.01 * (w - 1) ** 2 for w in GRID))
    misled = Calibration(1.0, 1.0, 0.0, 6, losses=tuple(30 * w for w in GRID))
    assert expert_weight([indifferent, indifferent, misled]) == 0.0
    assert expert_weight([indifferent, indifferent]) == pytest.approx(0.5, abs=0.1)  # the prior's


def test_without_any_task_that_held_out_rows_the_weights_are_the_usual_ones() -> None:
    for tasks in ([], [None, None], [Calibration(2.0), None]):
        assert weights(tasks) == (ROUTER_WEIGHT, EXPERT_WEIGHT)


# Which experts are asked


def tasks_asked(scores: np.ndarray, experts: Any) -> list[list[bool]]:
    """By a plain loop over rows."""
    found = []
    for row in scores:
        p = special.softmax(row)
        ends = [*STARTS[1:], len(row)]
        best = [max(row[start:end]) for start, end in zip(STARTS, ends, strict=True)]
        share = [sum(p[start:end]) for start, end in zip(STARTS, ends, strict=True)]
        order = sorted(range(len(best)), key=lambda task: -best[task])
        if experts == "all":
            mine = set(order)
        elif experts == "likely":
            mine = {task for task in order if share[task] >= DOUBT} | {order[0]}
        else:
            mine = set(order[:experts])
        found.append([task in mine for task in range(len(best))])
    return found


@pytest.mark.parametrize("experts", ["all", "likely", 0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("sharp", [0.5, 3.0, 30.0])
def test_those_experts_are_asked_that_a_plain_loop_would_ask(experts: Any, sharp: float) -> None:
    router = sharp * normal(50, sum(WIDTHS), seed=8)
    assert asked(router, WIDTHS, experts).tolist() == tasks_asked(router.numpy(), experts)


def test_the_likeliest_task_is_always_asked_even_where_a_crowd_of_classes_leaves_it_little() -> None:
    router = torch.zeros(1, 201, dtype=torch.float64)
    router[0, 200] = 0.1
    mask = asked(router, [*[1] * 200, 1], "likely")
    assert mask[0, 200]
    assert int(mask.sum()) == 1


class CountedExpert:
    """Class scores that tell row and task, and which rows were asked about."""

    def __init__(self) -> None:
        self.rows: dict[int, list[float]] = {}

    def __call__(self, x: Tensor, task: int) -> Tensor:
        assert task not in self.rows, "an expert is asked once"
        self.rows[task] = x[:, 0].tolist()
        return (x[:, :1] + 100 * task + torch.arange(WIDTHS[task])).float()


@pytest.mark.parametrize("experts", ["all", "likely", 1, 2])
def test_an_expert_is_asked_about_its_rows_alone_and_answers_in_its_own_columns(experts: Any) -> None:
    router, x = 3 * normal(40, sum(WIDTHS), seed=9), torch.arange(80.0).view(40, 2)
    expert = CountedExpert()
    found = look(router, x, WIDTHS, expert, experts)
    assert found.experts is not None
    assert found.experts.dtype == torch.float64
    chosen = tasks_asked(router.numpy(), experts)
    for task, (start, width) in enumerate(zip(STARTS, WIDTHS, strict=True)):
        mine = [row for row in range(40) if chosen[row][task]]
        assert expert.rows.get(task, []) == [2.0 * row for row in mine]
        for row in range(40):
            said = [2.0 * row + 100 * task + c if row in mine else -math.inf for c in range(width)]
            assert found.experts[row, start : start + width].tolist() == said


def test_an_expert_that_is_nobodys_choice_is_not_asked_at_all_and_with_0_none_is() -> None:
    router, x = torch.zeros(5, sum(WIDTHS), dtype=torch.float64), torch.zeros(5, 1)
    router[:, 0] = 50
    expert = CountedExpert()
    look(router, x, WIDTHS, expert, "likely")
    assert [*expert.rows] == [0]
    expert.rows.clear()
    found = look(router, x, WIDTHS, expert, 0)
    assert found.experts is None
    assert not expert.rows
    assert torch.equal(found.joint(0.7, 0.3), 0.7 * router)


def test_a_class_whose_task_was_not_asked_has_probability_0_and_the_others_1_in_all() -> None:
    router, x = normal(30, sum(WIDTHS), seed=10), torch.arange(60.0).view(30, 2)
    scores = look(router, x, WIDTHS, lambda rows, task: normal(len(rows), WIDTHS[task], seed=task), 2)
    p = scores.joint(1.2, 0.4).softmax(1)
    torch.testing.assert_close(p.sum(1), torch.ones(30, dtype=torch.float64))
    mask = asked(router, WIDTHS, 2)
    for row in range(30):
        for task, (start, width) in enumerate(zip(STARTS, WIDTHS, strict=True)):
            mine = p[row, start : start + width]
            assert bool((mine > 0).all()) if mask[row, task] else mine.tolist() == [0.0] * width
    torch.testing.assert_close(
        by_task(scores.joint(1.2, 0.4), WIDTHS),
        torch.stack([p[:, start : start + width].sum(1) for start, width in zip(STARTS, WIDTHS, strict=True)], 1),
    )


def test_experts_of_no_weight_rule_nothing_out() -> None:
    """Minus infinity times 0 would be no number."""
    router = normal(6, sum(WIDTHS))
    scores = look(router, torch.zeros(6, 1), WIDTHS, lambda rows, task: torch.zeros(len(rows), WIDTHS[task]), 1)
    assert torch.equal(scores.joint(2.0, 0.0), 2 * router)


# Limits


def limits_of(best: Tensor) -> tuple[float, ...]:
    """As `calibrate` finds them, for one task of one class whose joint score is `best` (the weights stay at 1)."""
    alone = Scores(best.unsqueeze(1), None, (1,))
    found = calibrate(alone, torch.zeros(len(best), 1), torch.zeros(len(best), dtype=torch.long))
    assert found.router == 1.0
    assert found.limits is not None
    return found.limits


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 19, 99, 100, 500])
def test_limits_are_finite_and_rise_with_the_share_below_them(rows: int) -> None:
    limits = limits_of(normal(rows, seed=rows))
    assert len(limits) == len(RATES)
    assert all(math.isfinite(limit) for limit in limits)
    assert list(limits) == sorted(limits)


@pytest.mark.parametrize("rows", [10, 99, 500])
def test_where_there_are_rows_enough_a_limit_is_the_conformal_quantile(rows: int) -> None:
    best = normal(rows, seed=rows)
    ordered = sorted(best.tolist())
    for rate, found in zip(RATES, limits_of(best), strict=True):
        rank = int((rows + 1) * rate)
        if rank:
            assert found == ordered[rank - 1]
        else:
            assert found <= ordered[0]


@pytest.mark.parametrize("rows", [2, 5, 10, 40, 150])
def test_of_fresh_rows_no_larger_share_lies_below_a_limit_than_it_says(rows: int) -> None:
    """On average over what was held out, of which the share itself is exactly known for a normal distribution."""
    tries = 200
    below = np.array([[stats.norm.cdf(limit) for limit in limits_of(normal(rows, seed=s))] for s in range(tries)])
    mean, error = below.mean(0), below.std(0) / math.sqrt(tries)
    for rate, found, by_chance in zip(RATES, mean, error, strict=True):
        assert found <= rate + 4 * by_chance
    if rows >= 40:  # and not far fewer
        np.testing.assert_allclose(mean[-4:], RATES[-4:], atol=0.03)


def test_a_single_row_tells_nothing_of_the_others_so_that_nothing_looks_new() -> None:
    one = Calibration(1.0, 1.0, 0.0, 1, limits_of(torch.tensor([3.0])))
    far = Scores(torch.tensor([[-1e6], [3.0]]), None, (1,))
    assert novelty(far, [one], 0.01).tolist() == pytest.approx([math.exp(-1)] * 2)
    assert (novelty(far, [one], 0.5) > 1).tolist() == [True, False]


def test_a_limit_for_any_share_lies_on_the_line_between_its_neighbors() -> None:
    table = (-9.0, -7.0, -6.0, -5.0, -3.0, -1.0, 0.0, 2.0, 4.0)
    for rate, expected in zip(RATES, table, strict=True):
        assert limit(table, rate) == pytest.approx(expected)
    for rate in np.geomspace(0.001, 0.5, 40)[1:-1]:
        after = next(place for place, other in enumerate(RATES) if other > rate)
        left, right = RATES[after - 1], RATES[after]
        share = math.log(rate / left) / math.log(right / left)
        assert limit(table, rate) == pytest.approx(table[after - 1] * (1 - share) + table[after] * share)
    assert limit(table, 1e-9) == table[0]
    assert limit(table, 0.99) == table[-1]


# Novelty


@pytest.mark.parametrize("measured", [False, True])
def test_novelty_is_the_least_over_tasks_of_how_far_score_or_distance_lies_beyond_the_limit(measured: bool) -> None:
    apart = normal(20, 4, seed=15).abs() * 3 if measured else None
    scores = Scores(normal(20, sum(WIDTHS), seed=11), normal(20, sum(WIDTHS), seed=12), WIDTHS, None, apart)
    near = tuple(np.linspace(-5, -1, len(RATES)))
    known = [
        Calibration(1.0, 0.5 + t, 0.3 * t, 2 + t, tuple(np.linspace(-3 - t, 1, len(RATES))), 1.0, near)
        for t in range(4)
    ]
    found = novelty(scores, known, 0.02)
    assert scores.experts is not None
    for row in range(20):
        each = []
        for task, (one, start, width) in enumerate(zip(known, STARTS, WIDTHS, strict=True)):
            assert one.limits is not None
            assert one.router is not None and one.experts is not None  # noqa: PT018
            own = [
                one.router * float(scores.router[row, c]) + one.experts * float(scores.experts[row, c])
                for c in range(start, start + width)
            ]
            here = limit(one.limits, 0.01 if measured else 0.02)
            far = (here - max(own)) / (one.limits[-1] - here)
            if apart is not None:
                most = -limit(near, 0.01)
                far = max(far, (float(apart[row, task]) - most) / (most - 1.0))
            each.append(math.exp(far))
        assert float(found[row]) == pytest.approx(min(each))


def test_beside_the_same_scores_one_more_task_makes_no_row_look_newer() -> None:
    scores = Scores(normal(50, sum(WIDTHS), seed=13), normal(50, sum(WIDTHS), seed=14), WIDTHS)
    known = [fitted(1.0, 0.4, 2 * t + 2) for t in range(4)]
    assert scores.experts is not None
    last = None
    for tasks in range(1, 5):
        width = sum(WIDTHS[:tasks])
        some = Scores(scores.router[:, :width], scores.experts[:, :width], WIDTHS[:tasks])
        now = novelty(some, known[:tasks], 0.01)
        assert last is None or bool((now <= last).all())
        last = now


def test_a_higher_rate_makes_rows_look_newer_and_no_score_is_too_low_to_be_told() -> None:
    scores = Scores(torch.tensor([[1.0], [-1e9]]), None, (1,))
    one = [fitted(1.0, 0.0, 1)]
    found = [novelty(scores, one, rate) for rate in (1e-4, 0.001, 0.01, 0.03, 0.4)]
    assert all(bool((left <= right).all()) for left, right in pairwise(found))
    assert all(bool(torch.isfinite(each).all()) for each in found)


def test_tasks_whose_experts_were_not_asked_have_no_say_in_what_is_new() -> None:
    router = torch.zeros(1, 2, dtype=torch.float64)
    experts = torch.tensor([[2.0, -torch.inf]], dtype=torch.float64)
    one = fitted(1.0, 1.0, 2)
    found = novelty(Scores(router, experts, (1, 1)), [one, one], 0.001)
    assert found.tolist() == [pytest.approx(math.exp((0.0 - 2.0) / 8.0))]


@pytest.mark.parametrize("missing", [None, Calibration(1.5)])
def test_a_task_without_held_out_rows_is_named(missing: Calibration | None) -> None:
    scores = Scores(normal(3, 2), None, (1, 1))
    with pytest.raises(InputError, match=r"task number 1 .*validation_fraction above 0"):
        novelty(scores, [fitted(1.0, 0.0, 1), missing], 0.01)


def test_the_routers_weight_is_fitted_beside_what_experts_weigh_for_all_tasks() -> None:
    y = torch.arange(300) % 2
    scores = Scores(normal(300, 4, seed=21), normal(300, 4, seed=22), (2, 2))
    assert scores.experts is not None
    scores.router[torch.arange(300), y + 2] += 1.5
    scores.experts[torch.arange(300), y + 2] += 1.0
    own = scores.experts[:, 2:]
    first = calibrate(scores, own, y)
    before = [fitted(1.0, 3.0, 20)]
    later = calibrate(scores, own, y, before)
    assert (later.experts, later.alone) == (first.experts, first.alone)
    mean = expert_weight([*before, later])
    assert mean != pytest.approx(later.experts, rel=0.01)

    def loss(alpha: float) -> float:
        joint = alpha * scores.router + mean * scores.experts
        pull = 0.5 * PRIOR_ROWS / 300 * (alpha / ROUTER_WEIGHT - 1) ** 2
        return pull - float(joint.double().log_softmax(1)[torch.arange(300), y + 2].mean())

    assert later.router is not None
    assert loss(later.router) <= min(loss(later.router * 1.05), loss(later.router * 0.95))
    assert later.router != first.router
