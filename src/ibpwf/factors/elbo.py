"""What a task maximizes: the evidence lower bound over its selection, strengths and free factors.

    L_t = Σ_n E_q log p(y_n | x_n) - KL(q ‖ p)                                                        (eq. ELBO)
    KL  = Σ_layers E_q(v)[KL(q(b) ‖ p(b|v))] + KL(q(v) ‖ p(v))                           (eq. online_inference)

Layers are rows, stick positions columns. The expectation over v takes one draw; given v everything is exact.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ibpwf.dispatch import reference
from ibpwf.factors.distributions import (
    concrete_sample,
    kl_concrete,
    kl_kumaraswamy,
    kl_kumaraswamy_beta,
    log_kumaraswamy_sample,
)
from ibpwf.factors.sticks import prior_logit


class Posterior(NamedTuple):
    """q of a task: logit π̄ of q(b), log c and log d of q(v) (eq. post_q)."""

    logit: Tensor
    log_c: Tensor
    log_d: Tensor


class StickPrior(NamedTuple):
    """p(v): Beta(c, 1) for the first task, where `d` is None, else the previous task's q(v) = Kumaraswamy(c, d)."""

    c: Tensor
    d: Tensor | None


def negative_elbo(fit: Tensor, kl: Tensor, examples: int) -> Tensor:
    """`-L_t / N_t` = mean cross-entropy + KL / N_t (eq. ELBO), a mini-batch's `fit` standing for the task's."""
    return fit + kl * (1 / examples)


@reference
def posterior_kl(q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> Tensor:
    """KL(q ‖ p) of all layers, for the draw of v that `noise` ~ Exp(1) gives (eq. online_inference).

    `mask` is 1 where a layer has a stick, else 0. `terms` is for `kl_kumaraswamy`.
    """
    return ((selection_kl(q, noise) + stick_kl(q, p, terms)) * mask).sum()


def selection_kl(q: Posterior, noise: Tensor) -> Tensor:
    """KL(q(b) ‖ p(b|v)) for one draw of v: the first term of eq. (online_inference)."""
    log_v = log_kumaraswamy_sample(q.log_c.exp(), q.log_d.exp(), noise)
    return kl_concrete(q.logit, prior_logit(log_v))


def stick_kl(q: Posterior, p: StickPrior, terms: int | None) -> Tensor:
    """KL(q(v) ‖ p(v)): the second term of eq. (online_inference), by eq. (kl_kumar)."""
    c, d = q.log_c.exp(), q.log_d.exp()
    return kl_kumaraswamy_beta(c, d, p.c) if p.d is None else kl_kumaraswamy(c, d, p.c, p.d, terms)


@reference
def sample_scores(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """`λ = r ⊙ b`, `b ~ BernoulliConcrete(π̄)`, from numbers uniform in (0, 1) (eqs. scores, post_b)."""
    return strength * concrete_sample(logit, temperature, uniform.logit(eps=1e-7))
