"""The dictionary's promises: it only appends, and never rewrites what is locked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ibpwf.factors.dictionary import Dictionary, FactorBlock


def block(positions: list[int], inputs: int = 3, outputs: int = 2, seed: int = 0) -> FactorBlock:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(inputs, len(positions), generator=generator)
    b = torch.randn(len(positions), outputs, generator=generator)
    return FactorBlock(a, b, torch.tensor(positions, dtype=torch.long))


def filled(locked: int, width: int) -> Dictionary:
    """A dictionary in which one task has locked the first `locked` of `width` sticks."""
    dictionary = Dictionary(3, 2)
    dictionary.lock(block(list(range(locked))), width=width)
    return dictionary


def test_locking_appends_and_leaves_every_earlier_block_where_and_as_it_was() -> None:
    dictionary = Dictionary(3, 2)
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
    dictionary = Dictionary(3, 2)
    given = block([0, 1])
    dictionary.lock(FactorBlock(given.a.requires_grad_(), given.b.requires_grad_(), given.positions), width=2)
    kept = dictionary.gathered()
    assert not kept.a.requires_grad
    assert not kept.b.requires_grad


def test_what_becomes_of_the_tensors_that_were_locked_does_not_reach_the_dictionary() -> None:
    dictionary, given = Dictionary(3, 2), block([4, 1])
    dictionary.lock(given, width=5)
    expected = dictionary.gathered()
    for part in (given.a, given.b, given.positions, *vars(dictionary.gathered()).values()):
        part.zero_()
    for got, value in zip(vars(dictionary.gathered()).values(), vars(expected).values(), strict=True):
        assert torch.equal(got, value)


def test_a_position_cannot_be_locked_twice_and_the_attempt_changes_nothing() -> None:
    dictionary = filled(locked=3, width=8)
    before = dictionary.gathered()
    with pytest.raises(ValueError, match="cannot be locked again"):
        dictionary.lock(block([5, 2], seed=1), width=20)
    assert dictionary.locked == 3
    assert dictionary.width == 8
    assert torch.equal(dictionary.gathered().a, before.a)


def test_the_width_never_shrinks() -> None:
    dictionary = filled(locked=3, width=8)
    dictionary.lock(block([4]), width=6)
    assert dictionary.width == 8


def test_what_a_fork_locks_is_not_in_the_dictionary_it_comes_from() -> None:
    dictionary = filled(locked=3, width=8)
    before = dictionary.gathered()
    fork = dictionary.fork()
    fork.lock(block([6, 4], seed=3), width=12)
    after = dictionary.gathered()
    assert (dictionary.width, fork.width) == (8, 12)
    assert (dictionary.locked, fork.locked) == (3, 5)
    assert torch.equal(after.a, before.a)
    assert torch.equal(after.positions, before.positions)


def test_an_empty_dictionary_gathers_to_empty_factors_of_the_right_shapes() -> None:
    gathered = Dictionary(3, 2).gathered()
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
    dictionary = Dictionary(3, 2)
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
