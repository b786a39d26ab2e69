"""How many factors a prior offers to tasks: what scipy says of the Indian buffet process, and caps."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from ibpwf.errors import InputError
from ibpwf.factors.prior import IBP, ConstantGrowth, LayerShape

ALPHAS = [0.3, 1.0, 4.0, 10.0, 37.5, 200.0]
LAYER = LayerShape("layer", 300, 200)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_an_alpha_that_is_no_positive_number_is_refused_by_name(alpha: float) -> None:
    with pytest.raises(InputError, match=f"alpha is {alpha}"):
        IBP(alpha=alpha)


@pytest.mark.parametrize("cap", [0, -5])
def test_a_cap_below_one_is_refused_by_name(cap: int) -> None:
    with pytest.raises(InputError, match=f"max_factors is {cap}"):
        IBP(max_factors=cap)


@pytest.mark.parametrize("alpha", [50.0, 200.0, 700.0])
def test_the_first_task_is_offered_sticks_until_the_prior_has_fallen_to_e_to_the_minus_two(alpha: float) -> None:
    offered = IBP(alpha=alpha).width(LAYER, 1, 0, 0)
    assert (alpha / (alpha + 1)) ** offered == pytest.approx(math.exp(-2), rel=0.02)


def test_the_papers_alpha_of_200_gives_the_papers_400_sticks() -> None:
    assert IBP(alpha=200.0).width(LAYER, 1, 0, 0) == 400


@pytest.mark.parametrize("task", [2, 3, 5, 10, 50])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_later_task_is_offered_what_99_in_100_ibp_customers_take_and_half_of_alpha(alpha: float, task: int) -> None:
    free = IBP(alpha=alpha).width(LAYER, task, locked=7, used=7) - 7
    assert free >= stats.poisson.ppf(0.99, alpha / task)
    assert free >= alpha / 2
    assert free <= max(4, 2 * alpha + 1), "no more than the first task got"


def test_sticks_left_over_by_earlier_tasks_stay_on_offer() -> None:
    assert IBP(alpha=4.0).width(LAYER, 2, locked=2, used=500) == 500


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_dictionary_is_short_of_factors_exactly_when_less_than_a_tenth_of_alpha_lies_idle(alpha: float) -> None:
    prior = IBP(alpha=alpha)
    enough = next(n for n in range(2, 1000) if n >= alpha / 10)
    for free in range(40):
        for active in range(free + 1):
            added = prior.shortage(LAYER, active, free, locked=5)
            if free - active >= enough:
                assert added == 0
            else:
                assert added >= max(4, alpha / 2)
                assert free + added - active >= enough, "what is added ends the shortage"


@pytest.mark.parametrize("cap", [1, 5, 6, 9, 30])
def test_neither_the_offer_nor_the_growth_exceeds_the_cap(cap: int) -> None:
    locked = min(cap, 5)
    prior = IBP(alpha=10.0, max_factors=cap)
    assert prior.width(LAYER, 2, locked, locked) == min(cap, locked + 12)  # Poisson(5): 5 + 3 √5 = 11.7
    for free in range(cap - locked + 1):
        grown = locked + free + prior.shortage(LAYER, free, free, locked)
        assert grown == min(cap, locked + free + 5)
    assert IBP(alpha=10.0, max_factors=cap).width(LAYER, 1, 0, 0) == min(cap, 20)


def test_a_dictionary_full_to_its_cap_offers_what_is_locked_and_nothing_else() -> None:
    prior = IBP(alpha=10.0, max_factors=6)
    assert prior.width(LAYER, 2, locked=6, used=6) == 6
    assert prior.shortage(LAYER, 0, 0, locked=6) == 0


@pytest.mark.parametrize(("task", "locked", "offered"), [(1, 0, 12), (2, 12, 17), (3, 17, 22)])
def test_constant_growth_offers_every_task_as_many_new_factors(task: int, locked: int, offered: int) -> None:
    assert ConstantGrowth(nu=12, omega=5).width(LAYER, task, locked, used=locked) == offered
