"""The stick-breaking Indian buffet process: the prior over which factors a task uses, and how many.

    v_i ~ Beta(α, 1),    π_k = Π_{i≤k} v_i,    b_k ~ Bernoulli(π_k)                  (eqs. prior_v, prior_pi, prior_b)

Sticks are kept as log v, so that a product of a thousand of them is a cumulative sum and never underflows. A
dictionary that grows continues the same sequence of sticks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ibpwf.factors.distributions import log1mexp

LOGIT_LIMIT = 30.0
LOG_P_RANGE = (-1e6, -math.exp(-LOGIT_LIMIT))
"""log p where its logit is worth a gradient."""


def stick_log_pi(log_v: Tensor) -> Tensor:
    """`log π_k = Σ_{i≤k} log v_i` over the last dimension (eq. prior_pi)."""
    return log_v.cumsum(-1)


def prior_logit(log_v: Tensor) -> Tensor:
    """logit of π_k = p(b_k = 1 | v) (eq. prior_b), from the sticks."""
    return logit_from_log(stick_log_pi(log_v))


def expected_probabilities(alpha: float, count: int) -> Tensor:
    """The prior mean `E[π_k] = (α / (α + 1))^k` for k = 1, ..., count (eqs. prior_v, prior_pi); never quite 0."""
    k = torch.arange(1, count + 1, dtype=torch.float64)
    return torch.exp(-k * math.log1p(1 / alpha)).float().clamp(min=torch.finfo(torch.float32).tiny)


def expected_total(alpha: float, tasks: int) -> float:
    """`α H_T`: the expected number of distinct factors that T tasks use together (appendix A)."""
    return alpha * math.fsum(1 / t for t in range(1, tasks + 1))


def logit_from_log(log_p: Tensor) -> Tensor:
    """`log p - log(1 - p)` from `log p <= 0`; at most 30, with a zero gradient where that limit holds.

    From below there is none to speak of: log p = -1000 gives logit -1000, log p = -inf gives -1e6.
    """
    log_p = log_p.clamp(*LOG_P_RANGE)
    return log_p - log1mexp(torch.log(-log_p))
