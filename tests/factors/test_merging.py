"""A merged task is an ordinary network with the task's answers, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factor_ledger import NETS, ConvNet, seeded, several

from ibpwf.factors.layers import FactorLayer


@pytest.mark.parametrize(("build", "heads", "shape"), NETS)
def test_merging_gives_an_ordinary_network_with_the_same_answers(build: Any, heads: str, shape: Any) -> None:
    model, _ = several(build, heads=heads)
    x = torch.randn(shape, generator=seeded(4))
    for task, outputs in enumerate((3, 5, 2)):
        merged = model.merge(task)
        assert type(merged) is type(build())
        assert not any(isinstance(module, FactorLayer) for module in merged.modules())
        assert all(p.requires_grad for p in merged.parameters())
        torch.testing.assert_close(merged(x), model.logits(x, task), rtol=0, atol=1e-6)
        fresh = build(outputs=5 if heads == "shared" else outputs)
        fresh.load_state_dict(merged.state_dict())  # strict: the same names and shapes
        answers = fresh.eval()(x)
        torch.testing.assert_close(answers[:, :outputs], model.logits(x, task), rtol=0, atol=1e-6)
        assert float(answers.detach().softmax(1)[:, outputs:].sum()) == 0.0, "outputs without a class never win"


def test_training_a_merged_network_does_not_reach_the_model() -> None:
    model, _ = several(ConvNet)
    x = torch.randn(6, 2, 7, 6)
    before = model.logits(x, 0)
    merged = model.merge(0).train()
    merged(x).square().sum().backward()
    torch.optim.SGD(merged.parameters(), lr=1.0).step()
    model._composed.clear()
    assert torch.equal(model.logits(x, 0), before)
