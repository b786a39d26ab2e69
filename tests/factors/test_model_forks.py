"""What happens to a model's fork, or to a shell of it, does not happen to the model."""

from __future__ import annotations

import pytest
import torch
from factor_ledger import mlp, seeded, several, shaken

from ibpwf import factorize
from ibpwf.factors.forget import forget_task


def test_what_a_fork_learns_is_not_in_the_model_it_comes_from() -> None:
    model, _ = several(mlp, outputs=(3, 5))
    twin, _ = several(mlp, outputs=(3, 5))
    x = torch.randn(6, 7)
    fork = model.fork()
    fork.finish_task(shaken(fork.start_task(4, seeded(50)), 50))
    assert fork.logits(x, 2).shape == (6, 4)
    assert (len(model.tasks), len(fork.tasks)) == (2, 3)
    for each in (model, twin):
        each.finish_task(shaken(each.start_task(2, seeded(2)), 2))
    for task in range(3):
        assert torch.equal(model.logits(x, task), twin.logits(x, task))
    assert torch.equal(fork.logits(x, 1), model.logits(x, 1))
    assert model.use(2) == twin.use(2)


def test_what_a_fork_forgets_stays_in_the_model_it_comes_from() -> None:
    model, _ = several(mlp, outputs=(3, 5, 2))
    x = torch.randn(6, 7)
    before = [model.logits(x, task) for task in range(3)]
    fork = model.fork()
    forget_task(fork, 0)
    for task in range(3):
        assert torch.equal(model.logits(x, task), before[task])
    for task in range(2):
        assert torch.equal(fork.logits(x, task), before[task + 1])


def test_a_fork_shares_every_tensor() -> None:
    model, _ = several(mlp, outputs=(3, 5))
    fork = model.fork()
    theirs = fork.state_dict()
    assert all(
        theirs[name].data_ptr() == tensor.data_ptr()
        for name, tensor in model.state_dict().items()
        if tensor.numel() > 1
    )


def test_a_shell_is_its_callers_alone_and_is_not_used_again_after_an_error() -> None:
    model = factorize(mlp())
    with model.shell() as one, model.shell() as other:
        assert one is not other
        assert one[0].weight.data_ptr() == other[0].weight.data_ptr() == model.net[0].weight.data_ptr()
    with pytest.raises(KeyError), model.shell() as broken:
        raise KeyError
    with model.shell() as first, model.shell() as second:
        assert {id(first), id(second)} & {id(one), id(other)}
        assert broken not in (first, second)
