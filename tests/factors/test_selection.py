"""Which factors a task keeps when its selection is fixed: those above κ, and further ones that accuracy needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.factors.prior import IBP
from ibpwf.factors.selection import further_factors, sufficient_selection
from ibpwf.factors.task_network import TaskNetwork

PRIOR, MOST_LOST = IBP(alpha=4, max_factors=6, kappa=0.7), 10.0


def network() -> TaskNetwork:
    """Two layers of six factors; their π̄ fall from 0.9 to 0.15 in steps of 0.15."""
    torch.manual_seed(0)
    model = factorize(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), prior=PRIOR)
    made = model.start_task(3, torch.Generator().manual_seed(0))
    with torch.no_grad():
        levels = torch.linspace(0.9, 0.15, 6)
        made.posterior.logit[:, :6] = torch.logit(levels)
    return made


def counts(selection: Mapping[str, Tensor]) -> list[int]:
    return [int(chosen.sum()) for chosen in selection.values()]


Accuracy = Callable[[Mapping[str, Tensor] | None], float]


def accuracy_by(need: Mapping[str, int]) -> tuple[list[dict[str, int] | None], Accuracy]:
    """100 % where every layer has as many factors as it needs, 50 % otherwise; and what was asked."""
    asked: list[dict[str, int] | None] = []

    def accuracy(selection: Mapping[str, Tensor] | None) -> float:
        found = None if selection is None else {name: int(chosen.sum()) for name, chosen in selection.items()}
        asked.append(found)
        return 100.0 if found is None or all(found[name] >= count for name, count in need.items()) else 50.0

    return asked, accuracy


def test_a_selection_that_keeps_the_accuracy_is_that_by_kappa() -> None:
    made = network()
    _, accuracy = accuracy_by({"0": 2, "2": 2})
    chosen = sufficient_selection(made, accuracy, MOST_LOST)
    assert counts(chosen) == [2, 2]  # π̄ of 0.9 and 0.75
    made.fix_selection(chosen)
    assert further_factors(made) == {}


@pytest.mark.parametrize(("need", "kept"), [({"0": 5}, [5, 2]), ({"2": 3}, [2, 3]), ({"0": 4, "2": 6}, [6, 6])])
def test_only_a_layer_that_needs_further_factors_keeps_them(need: dict[str, int], kept: list[int]) -> None:
    """All layers go down to one level of π̄ together; those that can do without go back."""
    made = network()
    _, accuracy = accuracy_by(need)
    chosen = sufficient_selection(made, accuracy, MOST_LOST)
    assert counts(chosen) == kept
    for name, mask in chosen.items():
        assert mask.tolist() == [k < int(mask.sum()) for k in range(6)], name  # the most probable ones
    made.fix_selection(chosen)
    expected = {name: count - 2 for name, count in zip(("0", "2"), kept, strict=True) if count > 2}
    assert further_factors(made) == expected


def test_where_no_selection_is_enough_the_best_that_was_tried_is_kept() -> None:
    made = network()

    def accuracy(selection: Mapping[str, Tensor] | None) -> float:
        return 100.0 if selection is None else 30.0 + 5 * sum(counts(selection))

    assert counts(sufficient_selection(made, accuracy, 0.0)) == [6, 6]


def test_few_selections_are_tried() -> None:
    made = network()
    asked, accuracy = accuracy_by({"0": 5})
    sufficient_selection(made, accuracy, MOST_LOST)
    assert len(asked) <= 7  # E[λ], κ's own, log2(4 levels) + 1 and one for each layer


@pytest.mark.parametrize("normalized", [False, True])
def test_what_a_selection_answers_is_what_the_network_answers_once_it_is_fixed(normalized: bool) -> None:
    """And asking leaves nothing behind: parameters, buffers and random streams are as before."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(8) if normalized else nn.Identity()
    net = nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    made = factorize(net, prior=PRIOR).start_task(3, torch.Generator().manual_seed(0))
    x = torch.randn(20, 5)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    stream = torch.get_rng_state()
    chosen = {"0": torch.tensor([True, False] * 3), "4": torch.tensor([False, True] * 3)}
    answers = made.answers_with(x, chosen)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert all(module.training for module in made.modules())
    made.fix_selection(chosen)
    for module in made.modules():
        module.training = isinstance(module, nn.BatchNorm1d)
    torch.testing.assert_close(answers, made(x), rtol=1e-5, atol=1e-6)
