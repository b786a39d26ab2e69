"""Batch normalization and clipping of bfloat16 images whose channels lie side by side, as kernels in Triton.

All they do is read and write. Sums over all rows are made in two parts, rows by programs and then programs, in a
fixed order: the same numbers give the same bits.

    z = x · scale + shift,  scale = γ / σ,  shift = β − μ · scale;   y = min(max(z, 0), top)
    dx = scale (g − Σg / R − (x − μ) Σ g (x − μ) / (R σ²)),  g = dy where 0 < z < top
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

NUMBERS = 4096  # in a tile
PROGRAMS = 1024  # of a sum over rows
PARTS = 128  # of them added up at a time
COLUMNS = 16  # for which one program does that


@triton.jit
def _tile(columns, first, rows, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Where a tile's numbers are, and which of them exist."""
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    row = first + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return row[:, None] * columns + column[None, :], inside, column


@triton.jit
def _sums_kernel(x_at, parts_at, rows, columns, share, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Σ(x − p) and Σ(x − p)² over a share of the rows; p is the first row, so that nothing cancels."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    last = tl.minimum((part + 1) * share, rows)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    pivot = tl.load(x_at + column, mask=column < columns, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(part * share, last, ROWS):
        at, inside, _ = _tile(columns, first, last, ROWS, WIDTH)
        x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, x - pivot[None, :], 0.0)
        total += apart
        squares += apart * apart
    at = part * columns + column
    tl.store(parts_at + at, tl.sum(total, 0), mask=column < columns)
    tl.store(parts_at + parts * columns + at, tl.sum(squares, 0), mask=column < columns)


@triton.jit
def _added_up(parts_at, parts, columns, column, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Both sums of all programs."""
    one = tl.zeros((PARTS, COLUMNS), tl.float32)
    other = tl.zeros((PARTS, COLUMNS), tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < columns)[None, :]
        at = part[:, None] * columns + column[None, :]
        one += tl.load(parts_at + at, mask=inside, other=0.0)
        other += tl.load(parts_at + parts * columns + at, mask=inside, other=0.0)
    return tl.sum(one, 0), tl.sum(other, 0)


@triton.jit
def _statistics_kernel(
    x_at, parts_at, weight_at, bias_at, mean_at, variance_at, found_at, parts, rows, columns, momentum, eps,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """μ, 1/σ, scale and shift of every channel, and the statistics that are kept of it moved."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total, squares = _added_up(parts_at, parts, columns, column, PARTS, COLUMNS)
    apart = total / rows
    mean = tl.load(x_at + column, mask=inside, other=0.0).to(tl.float32) + apart
    variance = tl.maximum(squares / rows - apart * apart, 0.0)
    inverse = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight_at + column, mask=inside, other=0.0) * inverse
    shift = tl.load(bias_at + column, mask=inside, other=0.0) - mean * scale
    tl.store(found_at + column, mean, mask=inside)
    tl.store(found_at + columns + column, inverse, mask=inside)
    tl.store(found_at + 2 * columns + column, scale, mask=inside)
    tl.store(found_at + 3 * columns + column, shift, mask=inside)
    kept = tl.load(mean_at + column, mask=inside, other=0.0)
    tl.store(mean_at + column, kept + momentum * (mean - kept), mask=inside)
    kept = tl.load(variance_at + column, mask=inside, other=0.0)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(variance_at + column, kept + momentum * (unbiased - kept), mask=inside)


@triton.jit
def _apply_kernel(
    x_at, found_at, y_at, rows, columns, top, CLIP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    at, inside, column = _tile(columns, tl.program_id(0) * ROWS, rows, ROWS, WIDTH)
    scale = tl.load(found_at + 2 * columns + column, mask=column < columns, other=0.0)
    shift = tl.load(found_at + 3 * columns + column, mask=column < columns, other=0.0)
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    z = x * scale[None, :] + shift[None, :]
    if CLIP:  # compared, so that what is no number stays and is noticed
        z = tl.where(z < 0, 0.0, tl.where(z > top, top, z))
    tl.store(y_at + at, z.to(y_at.dtype.element_ty), mask=inside)


@triton.jit
def _passed_on(dy, x, scale, shift, top, CLIP: tl.constexpr):
    """g: the gradient where nothing was clipped."""
    if CLIP:
        z = x * scale[None, :] + shift[None, :]
        dy = tl.where((z <= 0) | (z >= top), 0.0, dy)
    return dy


@triton.jit
def _gradient_sums_kernel(
    x_at, dy_at, found_at, parts_at, rows, columns, share, top,
    CLIP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Σg and Σ g (x − μ) over a share of the rows."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    last = tl.minimum((part + 1) * share, rows)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mean = tl.load(found_at + column, mask=column < columns, other=0.0)
    scale = tl.load(found_at + 2 * columns + column, mask=column < columns, other=0.0)
    shift = tl.load(found_at + 3 * columns + column, mask=column < columns, other=0.0)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    products = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(part * share, last, ROWS):
        at, inside, _ = _tile(columns, first, last, ROWS, WIDTH)
        x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_at + at, mask=inside, other=0.0).to(tl.float32)
        g = _passed_on(dy, x, scale, shift, top, CLIP)
        total += g
        products += g * (x - mean[None, :])
    at = part * columns + column
    tl.store(parts_at + at, tl.sum(total, 0), mask=column < columns)
    tl.store(parts_at + parts * columns + at, tl.sum(products, 0), mask=column < columns)


@triton.jit
def _slopes_kernel(
    parts_at, found_at, slopes_at, parts, rows, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """dx = scale · g + slope · x + level: slope and level of every channel, and the gradients of γ and β."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total, products = _added_up(parts_at, parts, columns, column, PARTS, COLUMNS)
    mean = tl.load(found_at + column, mask=inside, other=0.0)
    inverse = tl.load(found_at + columns + column, mask=inside, other=0.0)
    scale = tl.load(found_at + 2 * columns + column, mask=inside, other=0.0)
    slope = -scale * inverse * inverse * products / rows
    tl.store(slopes_at + column, slope, mask=inside)
    tl.store(slopes_at + columns + column, -scale * total / rows - slope * mean, mask=inside)
    tl.store(slopes_at + 2 * columns + column, products * inverse, mask=inside)
    tl.store(slopes_at + 3 * columns + column, total, mask=inside)


@triton.jit
def _gradient_kernel(
    x_at, dy_at, found_at, slopes_at, dx_at, rows, columns, top,
    CLIP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    at, inside, column = _tile(columns, tl.program_id(0) * ROWS, rows, ROWS, WIDTH)
    scale = tl.load(found_at + 2 * columns + column, mask=column < columns, other=0.0)
    shift = tl.load(found_at + 3 * columns + column, mask=column < columns, other=0.0)
    slope = tl.load(slopes_at + column, mask=column < columns, other=0.0)
    level = tl.load(slopes_at + columns + column, mask=column < columns, other=0.0)
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_at + at, mask=inside, other=0.0).to(tl.float32)
    g = _passed_on(dy, x, scale, shift, top, CLIP)
    dx = scale[None, :] * g + slope[None, :] * x + level[None, :]
    tl.store(dx_at + at, dx.to(dx_at.dtype.element_ty), mask=inside)


class Normalized(torch.autograd.Function):
    """y of images N×C×H×W whose channels lie side by side; `top` None: not clipped. Moves the kept statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        momentum: float,
        eps: float,
        top: float | None,
    ) -> Tensor:
        columns = x.shape[1]
        rows = x.numel() // columns
        plan, grid, shares, share = _plan(rows, columns)
        parts = x.new_empty(2, shares[0], columns, dtype=torch.float32)
        found = x.new_empty(4, columns, dtype=torch.float32)
        y = torch.empty_like(x)
        _sums_kernel[shares](x, parts, rows, columns, share, **plan)
        _statistics_kernel[(triton.cdiv(columns, COLUMNS),)](
            x, parts, weight, bias, mean, variance, found, shares[0], rows, columns, momentum, eps,
            PARTS=PARTS, COLUMNS=COLUMNS,
        )  # fmt: skip
        clip = {"top": top or 0.0, "CLIP": top is not None}
        _apply_kernel[grid](x, found, y, rows, columns, **clip, **plan)
        ctx.save_for_backward(x, found)
        ctx.clip = clip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, found = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        columns = x.shape[1]
        rows = x.numel() // columns
        plan, grid, shares, share = _plan(rows, columns)
        parts = x.new_empty(2, shares[0], columns, dtype=torch.float32)
        slopes = x.new_empty(4, columns, dtype=torch.float32)
        _gradient_sums_kernel[shares](x, dy, found, parts, rows, columns, share, **ctx.clip, **plan)
        _slopes_kernel[(triton.cdiv(columns, COLUMNS),)](
            parts, found, slopes, shares[0], rows, columns, PARTS=PARTS, COLUMNS=COLUMNS
        )
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _gradient_kernel[grid](x, dy, found, slopes, dx, rows, columns, **ctx.clip, **plan)
        own = (slopes[2] if ctx.needs_input_grad[1] else None, slopes[3] if ctx.needs_input_grad[2] else None)
        return dx, *own, None, None, None, None, None


def _plan(rows: int, columns: int) -> tuple[dict[str, int], tuple[int, int], tuple[int, int], int]:
    """The size of a tile; a program for every tile, by rows and columns; programs that share the rows, and how many
    rows each has."""
    width = min(max(triton.next_power_of_2(columns), 16), 64)
    plan = {"ROWS": NUMBERS // width, "WIDTH": width}
    across, down = triton.cdiv(columns, width), triton.cdiv(rows, plan["ROWS"])
    share = triton.cdiv(down, max(PROGRAMS // across, 1)) * plan["ROWS"]
    return plan, (down, across), (triton.cdiv(rows, share), across), share
