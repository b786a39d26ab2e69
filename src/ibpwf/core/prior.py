"""The stick-breaking Indian buffet process: the prior over which factors a task uses, and how many.

`v_i ~ Beta(α, 1)`, `π_k = Π_{i≤k} v_i` (eq. prior_pi), `b_k ~ Bernoulli(π_k)` (eq. prior_b). Sticks are kept
as `log v`, so that a product of a thousand of them is a cumulative sum and never underflows. A dictionary
that grows continues the same sequence of sticks: pass `start` (or `log_start`) where a function takes it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ibpwf.core.distributions import exponential_noise
from ibpwf.core.series import log1mexp
from ibpwf.errors import InputError

LOGIT_LIMIT = 30.0
LOG_P_RANGE = (-1e6, -math.exp(-LOGIT_LIMIT))  # log p where its logit is worth a gradient


def check_alpha(alpha: float) -> float:
    """`alpha` as a float, or an `InputError` that says what it must be."""
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"alpha = {alpha!r} does not fit: the IBP's alpha is the expected number of active factors of a "
            "task, so give a finite number above 0 (half the number of factors is a good start)."
        )
    return value


def _check_count(field: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{field} = {value!r} does not fit: give a whole number of at least {least}.")
    return number


def stick_log_pi(log_v: Tensor, log_start: Tensor | float = 0.0) -> Tensor:
    """`log π_k = Σ_{i≤k} log v_i` over the last dimension (eq. prior_pi).

    `log_start` is the log π of the stick before the first of these, without the last dimension: 0 for a new
    sequence, the old dictionary's last log π when the sequence continues.
    """
    log_pi = log_v.cumsum(-1)
    if isinstance(log_start, Tensor):
        return log_pi + log_start.unsqueeze(-1)
    return log_pi + log_start if log_start else log_pi


def expected_probabilities(
    alpha: float,
    count: int,
    start: int = 0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """The prior mean `E[π_k] = (α / (α + 1))^k` for k = start+1, ..., start+count; never quite 0."""
    alpha, start, count = check_alpha(alpha), _check_count("start", start, 0), _check_count("count", count, 0)
    k = torch.arange(start + 1, start + count + 1, dtype=torch.float64)
    dtype = dtype or torch.get_default_dtype()
    mean = torch.exp(-k * math.log1p(1 / alpha)).clamp(min=torch.finfo(dtype).tiny)
    return mean.to(dtype=dtype, device=device)


prior_mean = expected_probabilities


def logit_from_log(log_p: Tensor, limit: float = LOGIT_LIMIT) -> Tensor:
    """`log p - log(1 - p)` from `log p <= 0`; at most `limit`, with a zero gradient where the limit holds.

    From below there is none to speak of: log p = -1000 gives logit -1000, log p = -inf gives -1e6.
    """
    log_p = log_p.clamp(min=-1e6, max=-math.exp(-limit))
    return log_p - log1mexp(torch.log(-log_p))


class StickSample(NamedTuple):
    """One draw of the prior: sticks `v`, probabilities `pi` and the binary selection `b`."""

    v: Tensor
    pi: Tensor
    b: Tensor


class NewFactors(NamedTuple):
    """How many new factors a task is expected to open: the mean and a number it will hardly exceed."""

    mean: float
    high: int


class StickBreakingIBP:
    """The stick-breaking IBP with concentration `alpha` = expected number of active factors per task."""

    def __init__(self, alpha: float) -> None:
        self.alpha = check_alpha(alpha)

    def __repr__(self) -> str:
        return f"StickBreakingIBP(alpha={self.alpha:g})"

    def sample(
        self,
        count: int,
        generator: Generator | None = None,
        shape: Sequence[int] = (),
        *,
        log_start: Tensor | float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> StickSample:
        """Draw `(v, π, b)`, each of shape `(*shape, count)`; `log_start` continues an older sequence."""
        count = _check_count("count", count, 0)
        like = torch.empty(0, dtype=dtype or torch.get_default_dtype(), device=device)
        log_v = -exponential_noise((*shape, count), like, generator) / self.alpha
        pi = stick_log_pi(log_v, log_start).exp()
        return StickSample(log_v.exp(), pi, torch.bernoulli(pi, generator=generator))

    def expected_probabilities(self, count: int, start: int = 0) -> Tensor:
        """See the function of the same name."""
        return expected_probabilities(self.alpha, count, start)

    def expected_active(self, count: int, start: int = 0) -> float:
        """`Σ_k E[π_k]` for k = start+1, ..., start+count; α for the whole infinite sequence."""
        count, start = _check_count("count", count, 0), _check_count("start", start, 0)
        rate = math.log1p(1 / self.alpha)
        return self.alpha * math.exp(-start * rate) * -math.expm1(-count * rate)

    def new_factors(self, task: int, quantile: float = 0.999) -> NewFactors:
        """New dishes of customer t = 1, 2, ...: Poisson(α/t), its mean and its `quantile`."""
        mean = self.alpha / _check_count("task", task, 1)
        if not 0 < quantile < 1:
            raise InputError(f"quantile = {quantile!r} does not fit: give a number between 0 and 1, such as 0.999.")
        most = math.ceil(mean + 40 * math.sqrt(mean) + 800)
        n = torch.arange(most, dtype=torch.float64)
        below = torch.special.gammaincc(n + 1, torch.full_like(n, mean)) < quantile
        return NewFactors(mean, int(below.sum()))

    def expected_total(self, tasks: int) -> float:
        """`α H_T`: the expected number of distinct factors that T tasks use together."""
        return self.alpha * math.fsum(1 / t for t in range(1, _check_count("tasks", tasks, 0) + 1))
