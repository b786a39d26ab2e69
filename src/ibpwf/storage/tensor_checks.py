"""Tensors against what they must be: names, shapes, types, and numbers that can be calculated with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

BOUNDED, FINITE, NOT_NAN = "bounded", "finite", "not NaN"
"""What the numbers of a tensor must be: parameters can be calculated with, statistics may be as large as their type
allows, and a buffer of the network's own (a mask, say) may hold infinities."""
LARGEST = {torch.float16: 6e4, torch.bfloat16: 1e18, torch.float32: 1e18, torch.float64: 1e150}
"""Beyond these, the product of two numbers may be no number any more."""


class CorruptModelError(ValueError):
    """What a folder holds does not fit together; the sentence names the part and the tensor."""


class TensorReader:
    """The tensors of one part, taken by their names. Each must be there, of the shape and type that is expected and
    with numbers in it; one that nobody takes is corruption."""

    def __init__(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        self.part, self._left = part, dict(tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._left:
            raise CorruptModelError(f"part '{self.part}' has a tensor '{min(self._left)}' that nothing reads")

    def names(self, prefix: str = "") -> list[str]:
        """Those that are left to be taken."""
        return [name for name in self._left if name.startswith(prefix)]

    def has(self, name: str) -> bool:
        return name in self._left

    def length(self, name: str) -> int:
        """How many a tensor has, if it is there: what else must be as many is compared with it."""
        return len(self._left[name]) if name in self._left and self._left[name].ndim else 0

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        numbers: str | None = BOUNDED,
    ) -> Tensor:
        """One tensor; with `numbers` None they are looked at later."""
        if name not in self._left:
            raise CorruptModelError(f"part '{self.part}' has no tensor '{name}'")
        tensor = self._left.pop(name)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            found, should = _described(tensor.shape, tensor.dtype), _described(shape, dtype)
            raise CorruptModelError(f"tensor '{name}' of part '{self.part}' is {found} instead of {should}")
        if numbers is not None:
            check_numbers(self.part, name, tensor, numbers)
        return tensor

    def take_all(self, prefix: str) -> dict[str, Tensor]:
        """Those whose names begin so, without it, for somebody else to check."""
        return {name.removeprefix(prefix): self._left.pop(name) for name in self.names(prefix)}


def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def check_numbers(part: str, name: str, tensor: Tensor, rule: str = FINITE) -> None:
    """Refuse NaN, infinities and what is too large to be calculated with, as the rule says."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    most = LARGEST.get(tensor.dtype, math.inf)
    if float(torch.linalg.vector_norm(tensor.detach())) <= min(most, 1e300):  # no number is larger; the usual case
        return
    low, high = (float(end) for end in torch.aminmax(tensor.detach()))  # NaN if any is
    largest = max(-low, high)
    if math.isnan(low) or (rule != NOT_NAN and math.isinf(largest)):
        raise CorruptModelError(f"tensor '{name}' of part '{part}' holds NaN or infinite numbers")
    if rule == BOUNDED and largest > most:
        raise CorruptModelError(
            f"tensor '{name}' of part '{part}' holds {largest:g}; at most {most:g} can be calculated with"
        )


def buffer_rules(net: nn.Module) -> dict[str, str]:
    """What the numbers of a task's own copy of each buffer must be: finite, if the network's are."""
    rules = {}
    for name, buffer in net.named_buffers():
        infinite = buffer.is_floating_point() and bool(buffer.isinf().any())
        rules[name] = NOT_NAN if infinite else FINITE
    return rules


_MAKE = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "eye", "arange", "linspace", "normal"),
    *("new_empty", "new_zeros", "new_ones", "new_full", "repeat"),
)


LEAST = 256
"""What any tensor counts for, however small: a million of them take long too."""


class _Bounded(TorchFunctionMode):
    """Counts what is made, before it is."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.left, self.most = numbers, numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _MAKE:
            size = [kwargs["size"]] if "size" in kwargs else [one for one in args if not isinstance(one, Tensor)]
            lengths = [length for one in size for length in (one if isinstance(one, (list, tuple)) else [one])]
            made = math.prod(int(length) for length in lengths if isinstance(length, int))
            made = made * made if func.__name__ == "eye" and len(lengths) == 1 else made
            self.left -= max(made, LEAST)
            if self.left < 0:
                raise CorruptModelError(f"the network is larger than what is stored of it ({self.most} numbers)")
        return func(*args, **kwargs)


def check_parts(parts: Mapping[str, Mapping[str, Tensor]], rules: Mapping[str, str], usual: str) -> None:
    """Refuse numbers that break a tensor's rule, or where it has none the `usual` one."""
    for part, tensors in parts.items():
        for name, tensor in tensors.items():
            check_numbers(part, name, tensor, rules.get(name, usual))


@contextmanager
def at_most(numbers: int) -> Iterator[None]:
    """Nothing that makes tensors of more numbers in all gets done in this block: a few bytes of a description may
    ask for gigabytes."""
    with _Bounded(numbers):
        yield
