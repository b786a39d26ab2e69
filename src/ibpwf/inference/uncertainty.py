"""How sure is the answer? Predictive entropy and mutual information over posterior draws (appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, vmap
from torch.func import functional_call
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p in nats, with 0 log 0 = 0 (eq. predictive_entropy)."""
    total: Tensor = torch.special.xlogy(probabilities, probabilities).sum(-1)
    return -total


def sampled_probabilities(
    net: nn.Module,
    stacked: Mapping[str, Tensor],
    x: Tensor,
    chunk: int = 512,
    logits: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
    beside: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """ρ = mean over draws of softmax p(y|x,θ⁽ᵐ⁾), N×C (eq. predictive_given_task), and one draw's mean entropy, N.
    `logits` makes a row's class scores of what the network gives; None: they are what it gives. `beside`, N×C, is
    added to those of every draw.

    All draws of a chunk of rows run in one batched pass. Weights are lent to `net`, so it must be the caller's alone.
    """
    net.eval()
    means, entropies = [], []
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            scores = _all_samples(net, dict(stacked), x[rows], logits).double()
            p = (scores if beside is None else scores + beside[rows]).softmax(-1)
            means.append(p.mean(0))
            entropies.append(entropy(p).mean(0))
    return torch.cat(means), torch.cat(entropies)


class PlainAttention(TorchFunctionMode):
    """Attention in operations that can be batched over draws; torch's fused ones would run draw by draw.

    Torch's own switches are every thread's at once; a mode is this thread's alone, and `nn.MultiheadAttention` takes
    no fast path under one.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and not kwargs.get("need_weights", True):
            return func(*args, **{**kwargs, "need_weights": True})[0], None  # asked for weights, it fuses nothing
        return func(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` as a sum of products."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    of = torch.ops.aten._scaled_dot_product_attention_math
    out: Tensor = of(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def _all_samples(
    net: nn.Module,
    stacked: dict[str, Tensor],
    rows: Tensor,
    logits: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None,
) -> Tensor:
    def one(state: dict[str, Tensor]) -> Tensor:
        def outputs_of(x: Tensor) -> Tensor:
            out: Tensor = functional_call(net, state, (x,), tie_weights=False)
            return out

        return outputs_of(rows) if logits is None else logits(outputs_of, rows)

    try:
        with PlainAttention():
            return vmap(one)(stacked)
    except RuntimeError:  # the network has an operation that cannot be batched, such as an LSTM
        posterior_samples = len(next(iter(stacked.values())))
        return torch.stack(
            [one({name: tensor[draw] for name, tensor in stacked.items()}) for draw in range(posterior_samples)]
        )
