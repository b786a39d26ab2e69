"""The dictionary's promises: it grows when it must, only appends, and never rewrites what is locked."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ibpwf.errors import InputError
from ibpwf.factors.dictionary import Dictionary, FactorBlock

ALPHAS = [0.3, 1.0, 4.0, 10.0, 37.5, 200.0]


def block(positions: list[int], inputs: int = 3, outputs: int = 2, seed: int = 0) -> FactorBlock:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(inputs, len(positions), generator=generator)
    b = torch.randn(len(positions), outputs, generator=generator)
    return FactorBlock(a, b, torch.tensor(positions, dtype=torch.long))


def filled(alpha: float, locked: int, width: int, cap: int | None = None) -> Dictionary:
    """A dictionary in which one task has locked the first `locked` of `width` sticks."""
    dictionary = Dictionary(3, 2, alpha, cap)
    dictionary.lock(block(list(range(locked))), width=width)
    return dictionary


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_an_alpha_that_is_no_positive_number_is_refused_by_name(alpha: float) -> None:
    with pytest.raises(InputError, match=f"alpha is {alpha}"):
        Dictionary(3, 2, alpha)


@pytest.mark.parametrize("cap", [0, -5])
def test_a_cap_below_one_is_refused_by_name(cap: int) -> None:
    with pytest.raises(InputError, match=f"max_factors is {cap}"):
        Dictionary(3, 2, 4.0, cap)


@pytest.mark.parametrize("alpha", [50.0, 200.0, 700.0])
def test_the_first_task_is_offered_sticks_until_the_prior_has_fallen_to_e_to_the_minus_two(alpha: float) -> None:
    offered = Dictionary(3, 2, alpha).room_for(1)
    assert (alpha / (alpha + 1)) ** offered == pytest.approx(math.exp(-2), rel=0.02)


def test_the_papers_alpha_of_200_gives_the_papers_400_sticks() -> None:
    assert Dictionary(3, 2, 200.0).room_for(1) == 400


@pytest.mark.parametrize("task", [2, 3, 5, 10, 50])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_later_task_is_offered_what_99_in_100_ibp_customers_take_and_half_of_alpha(alpha: float, task: int) -> None:
    free = filled(alpha, locked=7, width=7).room_for(task) - 7
    assert free >= stats.poisson.ppf(0.99, alpha / task)
    assert free >= alpha / 2
    assert free <= max(4, 2 * alpha + 1), "no more than the first task got"


def test_sticks_left_over_by_earlier_tasks_stay_on_offer() -> None:
    assert filled(4.0, locked=2, width=500).room_for(2) == 500


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_dictionary_is_short_of_factors_exactly_when_less_than_a_tenth_of_alpha_lies_idle(alpha: float) -> None:
    dictionary = filled(alpha, locked=5, width=5)
    enough = next(n for n in range(2, 1000) if n >= alpha / 10)
    for free in range(40):
        for active in range(free + 1):
            added = dictionary.shortage(active, free)
            if free - active >= enough:
                assert added == 0
            else:
                assert added >= max(4, alpha / 2)
                assert free + added - active >= enough, "what is added ends the shortage"


@pytest.mark.parametrize("cap", [1, 5, 6, 9, 30])
def test_neither_the_offer_nor_the_growth_exceeds_the_cap(cap: int) -> None:
    locked = min(cap, 5)
    dictionary = filled(10.0, locked=locked, width=locked, cap=cap)
    assert dictionary.room_for(2) == min(cap, locked + 12)  # Poisson(5): 5 + 3 √5 = 11.7
    for free in range(cap - locked + 1):
        grown = locked + free + dictionary.shortage(free, free)
        assert grown == min(cap, locked + free + 5)
    assert Dictionary(3, 2, 10.0, cap).room_for(1) == min(cap, 20)


def test_a_dictionary_full_to_its_cap_offers_what_is_locked_and_nothing_else() -> None:
    dictionary = filled(10.0, locked=6, width=6, cap=6)
    assert dictionary.room_for(2) == dictionary.locked == 6
    assert dictionary.shortage(0, 0) == 0


def test_locking_appends_and_leaves_every_earlier_block_where_and_as_it_was() -> None:
    dictionary = Dictionary(3, 2, 4.0)
    seen: list[tuple[FactorBlock, tuple[torch.Tensor, ...], tuple[int, ...]]] = []
    for seed, positions in enumerate([[0, 2, 5], [], [1, 7], [3]]):
        dictionary.lock(block(positions, seed=seed), width=8)
        newest = dictionary.blocks[-1]
        parts = (newest.a, newest.b, newest.positions)
        seen.append((newest, tuple(p.clone() for p in parts), tuple(p.data_ptr() for p in parts)))
        for kept, (old, values, places) in zip(dictionary.blocks, seen, strict=True):
            assert kept is old
            for part, value, place in zip((kept.a, kept.b, kept.positions), values, places, strict=True):
                assert torch.equal(part, value)
                assert part.data_ptr() == place
    assert dictionary.locked == 6


def test_locked_factors_carry_no_gradient() -> None:
    dictionary = Dictionary(3, 2, 4.0)
    given = block([0, 1])
    dictionary.lock(FactorBlock(given.a.requires_grad_(), given.b.requires_grad_(), given.positions), width=2)
    kept = dictionary.gathered()
    assert not kept.a.requires_grad
    assert not kept.b.requires_grad


def test_what_becomes_of_the_tensors_that_were_locked_does_not_reach_the_dictionary() -> None:
    dictionary, given = Dictionary(3, 2, 4.0), block([4, 1])
    dictionary.lock(given, width=5)
    expected = dictionary.gathered()
    for part in (given.a, given.b, given.positions, *vars(dictionary.gathered()).values()):
        part.zero_()
    for got, value in zip(vars(dictionary.gathered()).values(), vars(expected).values(), strict=True):
        assert torch.equal(got, value)


def test_a_position_cannot_be_locked_twice_and_the_attempt_changes_nothing() -> None:
    dictionary = filled(4.0, locked=3, width=8)
    before = dictionary.gathered()
    with pytest.raises(ValueError, match="cannot be locked again"):
        dictionary.lock(block([5, 2], seed=1), width=20)
    assert dictionary.locked == 3
    assert dictionary.width == 8
    assert torch.equal(dictionary.gathered().a, before.a)


def test_the_width_never_shrinks() -> None:
    dictionary = filled(4.0, locked=3, width=8)
    dictionary.lock(block([4]), width=6)
    assert dictionary.width == 8


def test_what_a_fork_locks_is_not_in_the_dictionary_it_comes_from() -> None:
    dictionary = filled(4.0, locked=3, width=8)
    before = dictionary.gathered()
    fork = dictionary.fork()
    fork.lock(block([6, 4], seed=3), width=12)
    after = dictionary.gathered()
    assert (dictionary.width, fork.width) == (8, 12)
    assert (dictionary.locked, fork.locked) == (3, 5)
    assert torch.equal(after.a, before.a)
    assert torch.equal(after.positions, before.positions)


def test_an_empty_dictionary_gathers_to_empty_factors_of_the_right_shapes() -> None:
    gathered = Dictionary(3, 2, 4.0).gathered()
    assert gathered.a.shape == (3, 0)
    assert gathered.b.shape == (0, 2)
    assert gathered.positions.dtype == torch.long


@given(order=st.permutations(range(9)), cuts=st.sets(st.integers(0, 9), max_size=3))
@settings(max_examples=50, deadline=None)
def test_gathered_factors_stand_in_stick_order_whatever_order_they_were_locked_in(
    order: list[int], cuts: set[int]
) -> None:
    rng = np.random.default_rng(1)
    factors = {position: (rng.normal(size=3), rng.normal(size=2)) for position in range(9)}
    dictionary = Dictionary(3, 2, 4.0)
    edges = [0, *sorted(cuts), 9]
    for low, high in itertools.pairwise(edges):
        part = order[low:high]
        a = np.array([factors[p][0] for p in part]).reshape(-1, 3).T
        b = np.array([factors[p][1] for p in part]).reshape(-1, 2)
        positions = torch.tensor(part, dtype=torch.long)
        dictionary.lock(FactorBlock(torch.tensor(a), torch.tensor(b), positions), width=9)
    gathered = dictionary.gathered()
    assert gathered.positions.tolist() == list(range(9))
    for position, (a, b) in factors.items():
        assert np.array_equal(gathered.a[:, position].numpy(), a)
        assert np.array_equal(gathered.b[position].numpy(), b)
