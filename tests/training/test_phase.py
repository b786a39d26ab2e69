"""Optimizers with parameters that move faster than the others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ibpwf import Learner, Settings, models
from ibpwf.dispatch import accelerated
from ibpwf.training.phase import Phase, learn_faster, make_optimizer


@pytest.mark.parametrize("kind", ["adam", "sgd", "adagrad"])
@pytest.mark.parametrize("fast", [True, False])
def test_chosen_parameters_move_as_with_a_rate_of_their_own(kind: str, fast: bool) -> None:
    start = [torch.randn(4), torch.randn(3)]
    slow, quick = (nn.Parameter(values.clone()) for values in start)
    with accelerated(fast):
        both = make_optimizer(Phase("any", 1, 1, 0.01, kind), [slow, quick])
    learn_faster(both, [quick], 5.0)
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    alone = [nn.Parameter(values.clone()) for values in start]
    each = [kinds[kind]([one], lr=rate) for one, rate in zip(alone, (0.01, 0.05), strict=True)]
    for _ in range(3):
        for optimizer, parameters in ((both, (slow, quick)), (each[0], alone[:1]), (each[1], alone[1:])):
            optimizer.zero_grad()
            sum((parameter**2).sum() for parameter in parameters).backward()  # type: ignore[union-attr]
            optimizer.step()
    torch.testing.assert_close(slow, alone[0])
    torch.testing.assert_close(quick, alone[1])


def selections(settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """How far π̄'s logits of a first layer moved in learning, and the strengths."""
    torch.manual_seed(0)
    learner = Learner(models.mlp(6, [8], 2), settings, device="cpu")
    begun = learner.model.start_task(2, torch.Generator().manual_seed(0)).posterior.vectors(0).logit
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    learner.learn(x, (x[:, 0] > 0).long())
    vectors = next(iter(learner.model.tasks[0].vectors.values()))
    return (vectors.logit - begun).abs().mean(), vectors.strength


def test_the_choice_of_factors_is_learned_faster_and_the_rest_as_ever() -> None:
    plain = Settings(epochs=3, finetune_epochs=0, batch_size=16, learning_rate=1e-3, schedule="cosine")
    moved, strengths = selections(plain)
    faster, other = selections(plain.replace(selection_rate=20.0))
    assert float(faster) > 10 * float(moved)
    assert float((other - strengths).abs().max()) < 0.01  # a step of Adam moves by no more than the rate, 12 of them


def test_a_rate_of_one_changes_no_bit() -> None:
    plain = Settings(epochs=2, finetune_epochs=1, batch_size=16)
    assert torch.equal(selections(plain)[1], selections(plain.replace(selection_rate=1.0))[1])
