"""Examples: inputs and labels, made of bytes when first asked for, or of the user's own arrays.

Images stay unsigned bytes until someone asks for them. Permuted tasks share one float32 copy of the
data set and differ only by an index.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ibpwf.errors import InputError

Array = npt.NDArray[np.generic] | Tensor
"""What users may give: a numpy array or a torch tensor."""


class Rows:
    """Examples as float32, made from bytes on first use and then kept; shared by all who hold it.

    `rows` picks examples from `source`; None means all of them. Values are divided by `levels`, then
    shifted by `mean` and divided by `std` per channel, where these are given.
    """

    def __init__(
        self,
        source: Tensor,
        rows: Tensor | None = None,
        levels: int = 1,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        *,
        flatten: bool = False,
    ) -> None:
        self._source, self._rows = source, rows
        self._levels, self._mean, self._std = levels, mean, std
        self._flatten = flatten
        self._scaled = levels != 1 or mean is not None
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return len(self._source) if self._rows is None else len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        shape = tuple(self._source.shape[1:])
        return (int(torch.Size(shape).numel()),) if self._flatten else shape

    def tensor(self) -> Tensor:
        """All examples, `(N, *shape)`."""
        if self._tensor is None:
            picked = self._source if self._rows is None else self._source[self._rows]
            # In place below, so never on the source itself.
            x = picked.to(torch.float32, copy=self._rows is None and self._scaled)
            if self._levels != 1:
                x.div_(self._levels)
            if self._mean is not None and self._std is not None:
                per_channel = (1, -1, *([1] * (x.ndim - 2)))
                x.sub_(torch.tensor(self._mean, dtype=x.dtype, device=x.device).view(per_channel))
                x.div_(torch.tensor(self._std, dtype=x.dtype, device=x.device).view(per_channel))
            self._tensor = x.flatten(1) if self._flatten else x
        return self._tensor


class Split:
    """Examples of one task: `x` float32 `(N, *shape)`, `y` int64 `(N,)`.

    Without a permutation `x` is `base`, made once. With one, `x` is gathered from `base` when asked for
    and is freed when nobody holds it: bind it to a name, or gather mini-batches with `batch`, or on
    another device do `base[i].flatten(1)[:, permutation]` (tasks of one scenario share one `base`).
    Tensors are shared, so treat them as read-only.
    """

    def __init__(self, rows: Rows, y: Tensor, permutation: Tensor | None = None) -> None:
        self._examples, self._y, self._permutation = rows, y, permutation
        self._x: weakref.ref[Tensor] | None = None

    def __reduce__(self) -> tuple[type[Split], tuple[Rows, Tensor, Tensor | None]]:
        # The weak reference to `x` cannot travel to another process, and need not.
        return Split, (self._examples, self._y, self._permutation)

    def __len__(self) -> int:
        return len(self._y)

    def __repr__(self) -> str:
        permuted = "" if self._permutation is None else ", permuted"
        return f"Split({len(self):,} examples of shape {self.shape}{permuted})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self._examples.shape

    @property
    def base(self) -> Tensor:
        """The examples before the permutation, row for row those of `y`."""
        return self._examples.tensor()

    @property
    def permutation(self) -> Tensor | None:
        """Which value of a flattened base example stands at each place of `x`; None means its own."""
        return self._permutation

    @property
    def x(self) -> Tensor:
        """All inputs, `(N, *shape)`."""
        if self._permutation is None:
            return self.base
        x = self._x() if self._x is not None else None
        if x is None:
            x = self._gathered(self.base)
            self._x = weakref.ref(x)
        return x

    @property
    def y(self) -> Tensor:
        """All labels, `(N,)`."""
        return self._y

    def to(self, device: torch.device | str, moved: dict[int, Rows] | None = None) -> Split:
        """The same examples on another device; splits that are given the same `moved` share one copy of a base."""
        moved = {} if moved is None else moved
        key = id(self._examples)
        if key not in moved:
            moved[key] = Rows(self.base.to(device))
        permutation = None if self._permutation is None else self._permutation.to(device)
        return Split(moved[key], self._y.to(device), permutation)

    def permuted(self, permutation: Tensor) -> Split:
        """The same examples, still in the same memory, behind `permutation`."""
        return Split(self._examples, self._y, permutation)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the examples at `indices`, without making the whole of `x`."""
        return self._gathered(self.base[indices]), self._y[indices]

    def _gathered(self, x: Tensor) -> Tensor:
        if self._permutation is None:
            return x
        return x.flatten(1).index_select(1, self._permutation).view(-1, *self.shape)


Pair = tuple[Tensor, Tensor]


def checked_pair(x: Array, y: Array, part: str, where: str = "") -> Pair:
    """Inputs (bytes as they are, all else float32) and labels (int64), not copied where need not be.

    Errors call the arrays x_<part> and y_<part>, after `where`.
    """
    x_name, y_name = f"x_{part}", f"y_{part}"
    inputs, labels = _tensor(f"{where}{x_name}", x), _tensor(f"{where}{y_name}", y)
    if inputs.ndim < 2:
        raise InputError(
            f"{where}{x_name} has shape {tuple(inputs.shape)}; the first dimension counts examples, the "
            "others are one example's. Reshape it to (N, features)."
        )
    if len(inputs) == 0 or inputs[0].numel() == 0:
        raise InputError(f"{where}{x_name} is empty (shape {tuple(inputs.shape)}).")
    if inputs.is_complex():
        raise InputError(f"{where}{x_name} has complex values; give real ones.")
    # Bytes stay bytes until a task is used: a quarter of the memory.
    if inputs.dtype != torch.uint8:
        inputs = inputs.to(torch.float32)
        if not bool(torch.isfinite(inputs).all()):
            raise InputError(f"{where}{x_name} has values that are NaN or infinite; clean it first.")
    if labels.ndim != 1 or len(labels) != len(inputs):
        raise InputError(
            f"{where}{y_name} has shape {tuple(labels.shape)} for {len(inputs)} examples in {x_name}; give "
            "one label for each."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{where}{y_name} has type {labels.dtype}; labels must be whole numbers.")
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise InputError(f"{where}{y_name} has label {int(labels.min())}; labels count from 0.")
    return inputs, labels


def check_fit(train: Pair, other: Pair, part: str, where: str = "") -> None:
    """Raise `InputError` unless the examples of `part` have the shape and classes of those trained with."""
    if train[0].shape[1:] != other[0].shape[1:]:
        raise InputError(
            f"{where}x_train has examples of shape {tuple(train[0].shape[1:])}, x_{part} of "
            f"{tuple(other[0].shape[1:])}; they must be alike."
        )
    new = other[1][~torch.isin(other[1], train[1])]
    if len(new):
        raise InputError(f"{where}y_{part} has class {int(new[0])}, which y_train has not.")


def _tensor(field: str, values: Array) -> Tensor:
    try:
        # torch takes neither read-only arrays nor reversed ones.
        if isinstance(values, np.ndarray) and not (values.flags.writeable and values.flags.c_contiguous):
            values = values.copy()
        return torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{field} is no array of numbers ({error}). Give a numpy array or a tensor.") from error
