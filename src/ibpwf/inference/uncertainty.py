"""How sure is the answer? Predictive entropy and mutual information over posterior draws (appendix E)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn, vmap
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p in nats, with 0 log 0 = 0 (eq. predictive_entropy)."""
    total: Tensor = torch.special.xlogy(probabilities, probabilities).sum(dim)
    return -total


def draw_probabilities(
    net: nn.Module, stacked: Mapping[str, Tensor], x: Tensor, chunk: int = 512, outputs: int | None = None
) -> tuple[Tensor, Tensor]:
    """ρ = mean over draws of softmax p(y|x,θ⁽ᵐ⁾) over the first `outputs`, N×C (eq. predictive_given_task), and the
    mean entropy of one draw, N.

    All draws of a chunk of rows run in one batched pass.
    """
    net.eval()
    means, entropies = [], []
    with torch.no_grad():
        for rows in torch.split(x, chunk):
            p = _all_draws(net, dict(stacked), rows)[..., :outputs].double().softmax(-1)
            means.append(p.mean(0))
            entropies.append(entropy(p).mean(0))
    return torch.cat(means), torch.cat(entropies)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention in operations that can be batched over draws; torch's fused ones would run draw by draw."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _all_draws(net: nn.Module, stacked: dict[str, Tensor], rows: Tensor) -> Tensor:
    def one(state: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(net, state, (rows,), tie_weights=False)
        return out

    try:
        with _plain_attention():
            return vmap(one)(stacked)
    except RuntimeError:  # the network has an operation that cannot be batched, such as an LSTM
        draws = len(next(iter(stacked.values())))
        return torch.stack([one({name: tensor[draw] for name, tensor in stacked.items()}) for draw in range(draws)])
