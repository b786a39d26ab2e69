"""A task's weight from the shared dictionary: the one line the method is about."""

from __future__ import annotations

from torch import Tensor


def compose(w_a: Tensor, scores: Tensor, w_b: Tensor) -> Tensor:
    """`W_t = W_a diag(λ_t) W_b = Σ_k λ_k w_a,k ⊗ w_b,k`, J×M, from J×F, F and F×M (eqs. W_fac, W_fac_sum).

    Several λ in rows, N×F, give as many weights, N×J×M. Beside a frozen base W_0 this is a task's difference from it.
    """
    return (w_a * scores.unsqueeze(-2)) @ w_b


def product(x: Tensor, w_a: Tensor, scores: Tensor, w_b: Tensor) -> Tensor:
    """`x W_t = ((x W_a) ⊙ λ_t) W_b`, rows of x, without ever forming W_t (eq. W_fac)."""
    return ((x @ w_a) * scores) @ w_b


def as_matrix(weight: Tensor) -> Tensor:
    """A layer's weight `(out, in, …)` as the paper's matrix J×M, `J = in·…` and `M = out`; for a convolution that is
    `(H·W·C_in) × C_out` (section 2.1)."""
    return weight.flatten(1).t()


def as_weight(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `as_matrix`: J×M, or N×J×M, back to `(…, out, in, …)`."""
    rows = matrix.transpose(-1, -2)
    return rows.reshape(*rows.shape[:-1], *shape[1:])
