"""How sure is the answer? Predictive entropy and mutual information over posterior draws (appendix E)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn, vmap
from torch.func import functional_call


@dataclass(frozen=True)
class Uncertainty:
    """Per input, in nats.

    `entropy` is H[E_q p(y|x,θ)], the predictive entropy; `mutual_information` is what of it comes from not
    knowing the weights (and, with the task inferred, the task): entropy minus the mean entropy of a draw.
    """

    entropy: Tensor
    mutual_information: Tensor
    probabilities: Tensor


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p in nats, with 0 log 0 = 0."""
    total: Tensor = torch.special.xlogy(probabilities, probabilities).sum(dim)
    return -total


def draw_probabilities(
    net: nn.Module, stacked: Mapping[str, Tensor], x: Tensor, chunk: int = 512
) -> tuple[Tensor, Tensor]:
    """Mean over draws of softmax p(y|x,θ⁽ᵐ⁾), N×C, and the mean entropy of a single draw, N.

    All draws of a chunk of rows run in one batched pass.
    """
    net.eval()

    def one(state: dict[str, Tensor], rows: Tensor) -> Tensor:
        out: Tensor = functional_call(net, state, (rows,))
        return out

    means, entropies = [], []
    with torch.no_grad():
        for rows in torch.split(x, chunk):
            p = vmap(one, in_dims=(0, None))(dict(stacked), rows).double().softmax(-1)
            means.append(p.mean(0))
            entropies.append(entropy(p).mean(0))
    return torch.cat(means), torch.cat(entropies)
