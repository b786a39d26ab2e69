"""Examples: inputs and labels, made of bytes when first asked for, or of the user's own arrays.

Images stay unsigned bytes until someone asks for them. Permuted tasks share one float32 copy of the
data set and differ only by an index.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ibpwf.errors import InputError

Array = npt.NDArray[np.generic] | Tensor
"""What users may give: a numpy array or a torch tensor."""
Pair = tuple[Tensor, Tensor]


@dataclass(eq=False)
class Rows:
    """Examples as float32, made from bytes on first use and then kept; shared by all who hold it.

    `picked` are the rows of `source` to take; None means all of them. Values are divided by `levels`, then
    shifted by `mean` and divided by `std` per channel, where these are given.
    """

    source: Tensor
    picked: Tensor | None = None
    levels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    flatten: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        shape = self.source.shape[1:]
        return (shape.numel(),) if self.flatten else tuple(shape)

    @cached_property
    def tensor(self) -> Tensor:
        """All examples, `(N, *shape)`."""
        scaled = self.levels != 1 or bool(self.mean)
        picked = self.source if self.picked is None else self.source[self.picked]
        # In place below, so never on the source itself.
        x = picked.to(torch.float32, copy=self.picked is None and scaled)
        if self.levels != 1:
            x.div_(self.levels)
        if self.mean:
            per_channel = (1, -1, *([1] * (x.ndim - 2)))
            x.sub_(torch.tensor(self.mean, dtype=x.dtype, device=x.device).view(per_channel))
            x.div_(torch.tensor(self.std, dtype=x.dtype, device=x.device).view(per_channel))
        return x.flatten(1) if self.flatten else x


@dataclass(eq=False, repr=False)
class Split:
    """Examples of one task: `x` float32 `(N, *shape)`, `y` int64 `(N,)`.

    Without a permutation `x` is `base`, made once. With one, which says what value of a flattened base
    example stands at each place, `x` is gathered from `base` when asked for and is freed when nobody
    holds it: bind it to a name, or gather mini-batches with `base[i].flatten(1)[:, permutation]` (tasks of
    one scenario share one `base`). Tensors are shared, so treat them as read-only.
    """

    rows: Rows
    y: Tensor
    permutation: Tensor | None = None

    def __post_init__(self) -> None:
        self._gathered: Callable[[], Tensor | None] = lambda: None

    def __reduce__(self) -> tuple[type[Split], tuple[Rows, Tensor, Tensor | None]]:
        # The weak reference to `x` cannot travel to another process, and need not.
        return Split, (self.rows, self.y, self.permutation)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        permuted = "" if self.permutation is None else ", permuted"
        return f"Split({len(self):,} examples of shape {self.shape}{permuted})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.rows.shape

    @property
    def base(self) -> Tensor:
        """The examples before the permutation, row for row those of `y`."""
        return self.rows.tensor

    @property
    def x(self) -> Tensor:
        """All inputs, `(N, *shape)`."""
        if self.permutation is None:
            return self.base
        if (x := self._gathered()) is None:
            x = self.base.flatten(1).index_select(1, self.permutation).view(-1, *self.shape)
            self._gathered = weakref.ref(x)
        return x

    def to(self, device: torch.device | str, moved: dict[int, Rows] | None = None) -> Split:
        """The same examples on another device; splits that are given the same `moved` share one copy of a base."""
        moved = {} if moved is None else moved
        if id(self.rows) not in moved:
            moved[id(self.rows)] = Rows(self.base.to(device))
        permutation = None if self.permutation is None else self.permutation.to(device)
        return Split(moved[id(self.rows)], self.y.to(device), permutation)

    def permuted(self, permutation: Tensor) -> Split:
        """The same examples, still in the same memory, behind `permutation`."""
        return Split(self.rows, self.y, permutation)


def checked_split(x: Array, y: Array, part: str, where: str = "") -> Split:
    """Inputs (bytes as they are, all else float32) and labels (int64) of the user's, not copied where need not be.

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
    return Split(Rows(inputs), labels)


def check_fit(train: Split, other: Split, part: str, where: str = "") -> None:
    """Raise `InputError` unless the examples of `part` have the shape and classes of those trained with."""
    if train.shape != other.shape:
        raise InputError(
            f"{where}x_train has examples of shape {train.shape}, x_{part} of {other.shape}; they must be alike."
        )
    new = other.y[~torch.isin(other.y, train.y)]
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
