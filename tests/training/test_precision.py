"""Training in bfloat16: what is rounded and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ibpwf import Learner, Settings
from ibpwf.data.rows import IndexedRows
from ibpwf.dispatch import accelerated
from ibpwf.errors import InputError
from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.layers import FactorConv
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase
from ibpwf.training.step import make_step

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("accelerate", [True, False])
def test_a_weight_is_composed_in_full_precision_where_products_are_rounded(accelerate: bool):
    generator = torch.Generator().manual_seed(0)
    original = nn.Conv2d(3, 4, 3, bias=False)
    none = FactorBlock(torch.zeros(27, 0), torch.zeros(0, 4), torch.empty(0, dtype=torch.long))
    with accelerated(accelerate):
        layer = FactorConv(original, none, original.weight)
        free = torch.randn(8, 27, generator=generator), torch.randn(8, 4, generator=generator), torch.arange(8)
        layer.set_free(*free)
    layer.scores = torch.randn(8, generator=generator)
    x = torch.randn(2, 3, 8, 8, generator=generator)
    weight, out = layer.weight, layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded_weight, rounded = layer.weight, layer(x)
    assert rounded_weight.dtype == torch.float32
    assert torch.equal(rounded_weight, weight)
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(rounded.float(), out, rtol=0.05, atol=0.05 * float(out.detach().abs().max()))


def test_a_cpu_trains_in_full_precision_whatever_the_settings_say():
    x, y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
    found = []
    for precision in ("float32", "bfloat16"):
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        for number, parameter in enumerate(net.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
        settings = Settings(epochs=2, finetune_epochs=1, precision=precision)  # type: ignore[arg-type]
        learner = Learner(net, settings, device="cpu")
        learner.learn(x, y)
        found.append(learner.predict(x, task=0).probabilities)
    assert torch.equal(*found)


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match="precision"):
        Settings(precision="float8")  # type: ignore[arg-type]


@GPU
def test_on_a_gpu_products_are_rounded_and_parameters_are_not():
    x = torch.randn(64, 3, 8, 8, device="cuda")
    y = torch.arange(64, device="cuda") % 2
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).cuda()
    seen = []

    def loss(rows: torch.Tensor, labels: torch.Tensor) -> Loss:
        logits = net(rows)
        seen.append(logits.dtype)
        return Loss(F.cross_entropy(logits, labels))

    objective = Fit(list(net.parameters()), loss, buffers=list(net.buffers()), bfloat16=True)
    step = make_step(objective, Phase("p", 1, 32), IndexedRows(x, y))
    step.start_epoch(torch.Generator())
    while step.gradients():
        step.move()
    assert set(seen) == {torch.bfloat16}
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert bool(torch.isfinite(step.measured()[:, 0]).all())
